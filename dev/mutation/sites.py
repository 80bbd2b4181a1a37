"""Find the sites of a Python source into which a small fault can be put.

A site has an exact span, so that a mutant differs from its source in the changed characters alone. Text has no sites:
docstrings, annotations, messages of errors and warnings, logging, ``__repr__``, ``__all__``, ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "//": "*", "%": "//", "+=": "-=", "-=": "+=", "*=": "+="}
_SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
_ABOUT_TEXT = {"__repr__", "__str__", "_repr_html_"}
_QUIET = {"print", "debug", "info", "warning", "exception", "cast"}
_WARNS = {"warn", "_warn"}


@dataclass(frozen=True, order=True)
class Site:
    """A span of a source, in bytes of UTF-8, and the texts that can stand there instead.

    `scope` names the classes and functions around the site.
    """

    start: int
    end: int
    line: int
    old: str
    variants: tuple[str, ...]
    scope: tuple[str, ...] = ()


def find_sites(source: str) -> list[Site]:
    """Return the sites of a source, in the order in which they stand there."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.sites)


def mutated(source: str, site: Site, new: str) -> str:
    """Return the source with `new` at a site."""
    raw = source.encode()
    return (raw[: site.start] + new.encode() + raw[site.end :]).decode()


class _Finder(ast.NodeVisitor):
    """Walks over a syntax tree; tokens say where an operator stands, which the tree does not."""

    def __init__(self, source: str) -> None:
        self.sites: set[Site] = set()
        self._raw = source.encode()
        self._scope: tuple[str, ...] = ()
        lines = source.splitlines(keepends=True)
        self._lines = [0]
        for line in lines:
            self._lines.append(self._lines[-1] + len(line.encode()))
        self._tokens: list[tuple[int, int, str]] = []
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.OP, tokenize.NAME):
                row, column = token.start
                start = self._lines[row - 1] + len(lines[row - 1][:column].encode())
                self._tokens.append((start, start + len(token.string.encode()), token.string))
        self._starts = [start for start, _, _ in self._tokens]

    def _start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _between(self, start: int, end: int) -> list[tuple[int, int, str]]:
        return self._tokens[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def _add(self, start: int, end: int, *variants: str) -> None:
        line = self._raw.count(b"\n", 0, start) + 1
        old = self._raw[start:end].decode()
        self.sites.add(Site(start, end, line, old, variants, self._scope))

    def _add_node(self, node: ast.expr | ast.stmt, *variants: str) -> None:
        self._add(self._start(node), self._end(node), *variants)

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # --- definitions, and what is about text ---------------------------------------------------------------------

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if node.name in _ABOUT_TEXT:
            return
        around, self._scope = self._scope, (*self._scope, node.name)
        if not isinstance(node, ast.ClassDef):
            self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        self._visit_all(node.body)
        self._scope = around

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope  # noqa: N815 - ast's names

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults, node.body])

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip a formatted string, within which Python 3.11 does not know positions."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip an assertion, which is there for type checkers and readers."""

    def visit_match_case(self, node: ast.match_case) -> None:
        self._visit_all([node.guard, *node.body])

    # --- statements ----------------------------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and _called(node.value) not in _QUIET:
            self._add_node(node, "pass")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add_node(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                self._add_node(node.value, "None")
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add_node(node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not (isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"):
            if isinstance(node.target, ast.Attribute):
                self._add_node(node, "pass")
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add_node(node, "pass")
        self._add_operator(self._end(node.target), self._start(node.value))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        test, negated = node.test, isinstance(node.test, ast.UnaryOp)
        if isinstance(test, ast.UnaryOp):
            test = test.operand
        if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
            self._visit_all(node.body if negated else node.orelse)
        else:
            self._add_condition(node.test, "True", "False")
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._add_condition(node.test, "False")
        self.generic_visit(node)

    # --- expressions ---------------------------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add_condition(node.test, "True", "False")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._add_condition(test, "True", "False")
        self.generic_visit(node)

    def _add_condition(self, test: ast.expr, *variants: str) -> None:
        if not isinstance(test, ast.Constant):
            self._add_node(test, *variants)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right, operator in zip(operands, operands[1:], node.ops, strict=False):
            tokens = self._between(self._end(left), self._start(right))
            tokens = [token for token in tokens if token[2] not in "()"]
            self._add(tokens[0][0], tokens[-1][1], *_COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        new = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            for start, end, string in self._between(self._end(left), self._start(right)):
                if string in ("and", "or"):
                    self._add(start, end, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not (_is_text(node.left) or _is_text(node.right)):
            self._add_operator(self._end(node.left), self._start(node.right))
        self.generic_visit(node)

    def _add_operator(self, start: int, end: int) -> None:
        for first, last, string in self._between(start, end):
            if string in _ARITHMETIC:
                self._add(first, last, _ARITHMETIC[string])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            start = self._start(node)
            following = self._tokens[bisect_left(self._starts, start) + 1 :][:1]
            self._add(start, min([self._start(node.operand), *(token[0] for token in following)]), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add_node(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add_node(node, repr(node.value + 1))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound, moved in ((node.lower, "+ 1"), (node.upper, "- 1")):
            if bound is not None and not isinstance(bound, ast.Constant):
                self._add_node(bound, f"({self._raw[self._start(bound) : self._end(bound)].decode()}) {moved}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _called(node)
        if name in _QUIET or name in _WARNS or name.endswith(("Error", "Warning")):
            return
        if name in _SWAPPED:
            end = self._end(node.func)
            self._add(end - len(name), end, _SWAPPED[name])
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._add_keyword(keyword)
        self.generic_visit(node)

    def _add_keyword(self, keyword: ast.keyword) -> None:
        """Add the dropping of a keyword argument with the comma behind it, or else before it."""
        start, end = self._start(keyword), self._end(keyword.value)
        opened = sum(string == "(" for _, _, string in self._between(start, self._start(keyword.value)))
        behind = self._tokens[bisect_left(self._starts, end) :][: opened + 1]
        end = behind[opened - 1][1] if opened else end
        before = self._tokens[bisect_left(self._starts, start) - 1]
        if behind[opened][2] == ",":
            end = behind[opened][1]
        elif before[2] == ",":
            start = before[0]
        self._add(start, end, "")


def _called(node: ast.Call) -> str:
    """Return the name of a function or method that is called, or an empty text for another expression."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
