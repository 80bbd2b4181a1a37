"""`storage_options=` -> what obstore takes: its own names, and those of fsspec that mean the same.

Invariant: an option that is not known is an error, and so is one that is given twice under two names. Values are never
repeated in messages, since some are secrets. Nothing here opens a connection.
"""

from __future__ import annotations

import configparser
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zarrfeed.base.errors import ConfigError

#: Scheme of a URL -> which of obstore's stores reads it.
STORE_OF_SCHEME = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "http": "http", "https": "http",
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), "azure"),
}  # fmt: skip

#: Name of an option in fsspec's file systems -> its name in obstore.
_ALIASES = {
    "s3": {
        "anon": "skip_signature",
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "endpoint_url": "endpoint",
        "region_name": "region",
        "requester_pays": "request_payer",
    },
    "gcs": {"anon": "skip_signature", "endpoint_url": "base_url"},
    "azure": {
        "anon": "skip_signature",
        "endpoint_url": "endpoint",
        "sas_token": "sas_key",
        "access_key": "account_key",
    },
    "http": {},
}

#: obstore's options of the stores, as far as reading needs them.
_OWN = {
    "s3": (
        "access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint", "bucket",
        "skip_signature", "request_payer", "virtual_hosted_style_request", "unsigned_payload", "metadata_endpoint",
        "imdsv1_fallback", "container_credentials_relative_uri", "container_credentials_full_uri",
        "container_authorization_token_file", "web_identity_token_file", "role_arn", "role_session_name",
        "s3_express",
    ),
    "gcs": ("service_account", "service_account_key", "base_url", "bearer_token", "bucket", "application_credentials",
            "skip_signature"),
    "azure": (
        "account_name", "account_key", "client_id", "client_secret", "tenant_id", "authority_host", "sas_key",
        "endpoint", "use_emulator", "msi_endpoint", "object_id", "msi_resource_id", "federated_token_file",
        "use_azure_cli", "skip_signature", "container_name", "use_fabric_endpoint",
    ),
    "http": (),
}  # fmt: skip

#: obstore's options of its HTTP client; they may stand in `client_options` or beside the others.
_CLIENT = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_headers", "http1_only", "http2_only",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
    "root_certificate", "randomize_addresses", "read_timeout", "timeout", "user_agent",
)  # fmt: skip
_RETRY = ("max_retries", "backoff", "retry_timeout")
#: Nested mappings beside the store's options.
_NESTED = ("client_options", "retry_config", "credential_provider", "client_kwargs")
#: An option of our own.
_FORBIDDEN_IS_MISSING = "forbidden_is_missing"

#: Kind of store -> variables of the environment, and options, each of which is a way to get credentials.
_CREDENTIALS = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
         "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE"),
        ("access_key_id", "skip_signature", "container_credentials_relative_uri", "container_credentials_full_uri",
         "web_identity_token_file", "metadata_endpoint"),
    ),
    "gcs": (
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY",
         "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN", "GOOGLE_SKIP_SIGNATURE"),
        ("service_account", "service_account_key", "bearer_token", "application_credentials", "skip_signature"),
    ),
}  # fmt: skip
_TRUE = ("1", "true", "yes", "on", "y", "t")
_FALSE = ("0", "false", "no", "off", "n", "f")


def obstore_options(url: str, scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `storage_options` to the keyword arguments of `obstore.store.from_url`.

    Parameters
    ----------
    url
        The name of the store in messages.
    scheme
        The scheme of the URL.
    options
        The user's options. Names of obstore may have their prefix ("aws_region") or lack it ("region").

    Raises
    ------
    ConfigError
        For an option that this kind of store does not have, or that is given twice.
    """
    kind = STORE_OF_SCHEME[scheme]
    aliases, own = _ALIASES[kind], _OWN[kind]
    config: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {"client_options": {}, "retry_config": {}}
    result: dict[str, Any] = {}

    def put(where: dict[str, Any], given: str, name: str, value: object) -> None:
        if name in where:
            raise ConfigError(f"{url}: storage_options has {given!r} and another name of {name!r}: give one of them")
        where[name] = value

    for given, value in _flat(url, kind, options):
        if value is None or given == _FORBIDDEN_IS_MISSING:
            continue
        name = _without_prefix(kind, given)
        if kind == "gcs" and given == "token" and str(value) == "anon":  # as gcsfs has it
            put(config, given, "skip_signature", True)
        elif kind == "gcs" and given == "token" and isinstance(value, str) and value.endswith(".json"):
            put(config, given, "service_account", value)
        elif name in aliases:
            put(config, given, aliases[name], value)
        elif name in own:
            put(config, given, name, value)
        elif name in _CLIENT:
            put(nested["client_options"], given, name, value)
        elif given == "headers":
            put(nested["client_options"], given, "default_headers", value)
        elif given in nested and isinstance(value, Mapping):
            known = _CLIENT if given == "client_options" else _RETRY
            for inner, inner_value in value.items():
                if inner not in known:
                    raise _unknown(url, f"{given}[{inner!r}]", inner, known)
                put(nested[given], f"{given}[{inner!r}]", inner, inner_value)
        elif given == "credential_provider":
            result[given] = value
        else:
            raise _unknown(url, repr(given), given, (*aliases, *own, *_CLIENT, *_NESTED, _FORBIDDEN_IS_MISSING))
    return {**result, "config": config, **nested}


def forbidden_is_missing(url: str, options: Mapping[str, Any]) -> bool:
    """Return whether the user says that chunks which the server refuses (403) are missing.

    Raises
    ------
    ConfigError
        If the option is neither true nor false.
    """
    value = options.get(_FORBIDDEN_IS_MISSING)
    text = str(value).lower()
    if value is None or text in _FALSE:
        return False
    if text not in _TRUE:
        raise ConfigError(f"{url}: storage_options[{_FORBIDDEN_IS_MISSING!r}] must be true or false")
    return True


def _flat(url: str, kind: str, options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return options, those in `client_kwargs` (of botocore's or aiohttp's client) among the others."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError(f"storage_options: got a {type(options).__name__}, must be a dict of names to values")
    flat = [(name, value) for name, value in options.items() if name != "client_kwargs"]
    inner = options.get("client_kwargs")
    if inner is None:
        return flat
    known = ("headers",) if kind == "http" else ("endpoint_url", "region_name")
    if not isinstance(inner, Mapping):
        raise ConfigError(f"{url}: storage_options['client_kwargs']: got a {type(inner).__name__}, must be a dict")
    for name in inner:
        if name not in known:
            raise _unknown(url, f"client_kwargs[{name!r}]", str(name), known)
    return flat + list(inner.items())


def _without_prefix(kind: str, name: str) -> str:
    prefixes = {"s3": ("aws_",), "gcs": ("google_",), "azure": ("azure_storage_", "azure_")}.get(kind, ())
    for prefix in prefixes:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _unknown(url: str, shown: str, name: str, known: tuple[str, ...]) -> ConfigError:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"must be one of {', '.join(sorted(set(known)))}"
    return ConfigError(f"{url}: storage_options {shown} is not known for such a URL; {hint}")


def default_credentials(
    scheme: str, config: Mapping[str, Any], environment: Mapping[str, str], *, has_provider: bool = False
) -> dict[str, Any]:
    """Return the options to add to those of a store, so that no metadata service is asked where it need not be.

    obstore asks the metadata service of the cloud for credentials when it finds none. It does not read the file of
    credentials that AWS's tools write, and does not heed the variables that turn the metadata service off. So for S3
    the keys of the profile in that file are taken; and requests are not signed if the metadata service is turned off.

    Raises
    ------
    ConfigError
        If `AWS_PROFILE` names a profile that has no keys.
    """
    kind = STORE_OF_SCHEME[scheme]
    if kind not in _CREDENTIALS or has_provider:
        return {}
    variables, options = _CREDENTIALS[kind]
    if any(environment.get(name) for name in variables) or any(name in config for name in options):
        return {}
    if kind == "gcs":
        has_file = (Path.home() / ".config/gcloud/application_default_credentials.json").exists()
        off = not has_file and environment.get("NO_GCE_CHECK", "").lower() in _TRUE
        return {"skip_signature": True} if off else {}
    found = _profile(environment)
    if found:
        return {name: value for name, value in found.items() if name not in config}
    off = environment.get("AWS_EC2_METADATA_DISABLED", "").lower() in _TRUE
    return {"skip_signature": True} if off else {}


def client_options_of(scheme: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options of obstore's HTTP client that the environment has, such as `AWS_ALLOW_HTTP`.

    obstore reads them by itself, but only where no other option of the client is given.
    """
    prefix = {"s3": "AWS_", "gcs": "GOOGLE_", "azure": "AZURE_"}.get(STORE_OF_SCHEME[scheme])
    if prefix is None:
        return {}
    named = {name: environment.get(prefix + name.upper()) for name in _CLIENT}
    return {name: value for name, value in named.items() if value}


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return keys and region of the profile in the files of AWS's tools; nothing if there are none."""
    named = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    profile = named or "default"
    home = Path.home() / ".aws"
    credentials = _section(Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"), profile)
    section = profile if profile == "default" else f"profile {profile}"
    settings = _section(Path(environment.get("AWS_CONFIG_FILE") or home / "config"), section)
    found = {**settings, **credentials}
    if "aws_access_key_id" not in found or "aws_secret_access_key" not in found:
        if named:
            raise ConfigError(
                f"AWS_PROFILE = {named!r}: the profile has no aws_access_key_id and aws_secret_access_key; set "
                "both in the environment (`aws configure export-credentials --format env` prints them)"
            )
        return {}
    names = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
    names |= {"aws_session_token": "session_token"}
    taken = {short: found[name] for name, short in names.items() if name in found}
    if "region" in found and not environment.get("AWS_REGION") and not environment.get("AWS_DEFAULT_REGION"):
        taken["region"] = found["region"]
    return taken


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path.expanduser())
    except (OSError, configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a file of AWS's tools: {type(error).__name__}") from error
    return dict(parser[name]) if parser.has_section(name) else {}
