"""Where each module is tested: in the file of its name below tests/unit/, or in the files that are named here.

`src/zarrfeed/plan/order/order.py` is tested in `tests/unit/plan/order/test_order.py`. A module without such a
file has a line in `TESTED_IN`; a package whose modules are tested together has one line, which ends in a slash.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.paths import ROOT, TESTS

PACKAGE = ROOT / "src" / "zarrfeed"

#: module or package below src/zarrfeed -> files below tests/
TESTED_IN: dict[str, tuple[str, ...]] = {
    "base/at_once.py": ("unit/storage/access/test_far_files.py",),
    "base/units.py": ("unit/torch/datasets/test_iterable_dataset.py",),
    "spec/arrays/array.py": ("unit/metadata/array/test_array.py",),
    "spec/arrays/codec.py": ("unit/metadata/array/test_array.py",),
    "spec/samples/coordinate.py": ("unit/metadata/group/test_coordinates.py",),
    "spec/values/conversion.py": ("unit/metadata/array/test_conversion.py", "unit/metadata/test_normalization.py"),
    **{
        f"{name}.py": ("parity/test_chosen_items.py",)
        for name in (
            "metadata/array/item_indexers",
            "metadata/description/chosen_items",
            "metadata/group/item_choices",
            "metadata/stores/labels_by_store",
            "report/chosen_decodes",
            "spec/arrays/item_choice",
        )
    },
    **{
        f"{name}.py": ("parity/test_sample_dims.py",)
        for name in (
            "metadata/array/merged_axes",
            "metadata/face/grid_labels",
            "metadata/face/sample_coords",
            "metadata/group/grid_coordinates",
            "metadata/group/sample_dims",
            "plan/samples/box_samples",
            "spec/samples/sample_grid",
            "spec/samples/sample_grids",
        )
    },
    **{
        f"{name}.py": ("parity/test_splits.py",)
        for name in (
            "metadata/description/split_columns",
            "metadata/face/check_disjoint",
            "metadata/group/sample_columns",
            "plan/samples/split_part",
        )
    },
    "metadata/description/returned_coords.py": ("parity/test_returned_coords.py",),
    "report/value_meanings.py": ("parity/test_names.py",),
    "report/weight_shares.py": ("parity/test_weights.py",),
    **{
        f"{name}.py": ("parity/test_random_crops.py",)
        for name in ("metadata/description/sequence_calls", "plan/order/crop_order", "plan/choice/crop_starts")
    },
    **{
        f"{name}.py": ("parity/test_sequences.py",)
        for name in ("plan/order/bucketed_order", "plan/choice/buckets", "torch/batches/sequences")
    },
    "plan/choice/packed_sequences.py": ("parity/test_packed_sequences.py",),
    "spec/samples/sample_runs.py": ("parity/test_packed_sequences.py",),
    "plan/order/drawn_order.py": ("unit/plan/order/test_weighted_order.py",),
    "report/given_shares.py": ("parity/test_given_order.py",),
    "plan/order/given_order.py": ("parity/test_given_order.py",),
    "plan/mixture/cycled_order.py": ("parity/test_given_order.py",),
    "plan/mixture/drawn_mixture.py": ("parity/test_weighted_mixtures.py", "parity/test_random_crops.py"),
    "plan/choice/counts_of_sources.py": ("parity/test_weighted_mixtures.py",),
    "plan/mixture/pass_mixture.py": ("parity/test_weighted_mixtures.py", "parity/test_mixed_patches.py"),
    "plan/patches/mixed_patches.py": ("parity/test_mixed_patches.py",),
    "plan/samples/given_samples.py": ("parity/test_given_order.py", "unit/plan/blocks/test_chunks_over_blocks.py"),
    "metadata/group/whole_arrays.py": ("parity/test_segments.py", "unit/metadata/group/test_coordinates.py"),
    "metadata/array/code_names.py": ("parity/test_names.py",),
    "metadata/description/missing_samples.py": ("parity/test_missing_samples.py",),
    "metadata/description/label_weights.py": ("unit/tools/test_patch_weights.py",),
    **{
        f"{name}.py": ("parity/test_segments.py",)
        for name in (
            "engine/segment_text",
            "metadata/description/segment_calls",
            "metadata/face/data_segments",
            "metadata/group/segment_columns",
            "spec/fields/segment_text",
            "spec/samples/segments",
        )
    },
    "spec/description/version.py": ("unit/torch/passes/test_versions.py",),
    "spec/description/edition.py": ("unit/torch/passes/test_editions.py", "unit/torch/passes/test_versions.py"),
    "spec/fields/images.py": ("unit/engine/test_image_reader.py",),
    "spec/samples/window.py": ("unit/plan/windows/test_windows.py",),
    "spec/arrays/layout.py": ("parity/test_many_stores.py",),
    "spec/arrays/array_parts.py": ("parity/test_many_stores.py",),
    **{
        f"packing/{name}.py": ("unit/packing/test_pack.py",)
        for name in ("pack_report", "targets/packed_values", "work/finish", "work/manifest", "work/unit_worker")
    },
    "packing/targets/timed_passes.py": ("unit/packing/targets/test_codec_trial.py", "unit/tools/test_bench_command.py"),
    "packing/targets/chunk_lengths.py": ("unit/packing/targets/test_layout_choice.py",),
    "packing/verify_pack.py": ("unit/packing/test_pack.py", "process/test_packing.py"),
    **{
        f"packing/{name}.py": ("unit/packing/sources/cells/test_anndata_source.py",)
        for name in ("work/sparse_rows", "sources/cells/anndata_elements", "sources/cells/csr_rows")
    },
    **{
        f"storage/files/{name}.py": ("parity/test_files.py", "unit/storage/files/test_hdf5.py")
        for name in ("chunk_table", "data_file", "hdf5_filters", "hdf5_library", "hdf5_names", "table_store")
    },
    **{
        f"storage/files/{name}.py": ("unit/storage/files/test_tiff.py", "unit/storage/files/test_hdf5.py")
        for name in ("file_codecs", "tiff_image")
    },
    "storage/files/opened_files.py": ("parity/test_first_guesses.py",),
    **{
        f"storage/{name}.py": ("unit/storage/files/test_references.py",)
        for name in ("files/chunk_names", "files/reference_folder", "files/reference_targets", "access/far_chunks")
    },
    "base/json_attributes.py": ("unit/packing/sources/arrays/test_hdf5_source.py",),
    "storage/access/portable.py": ("process/test_shared_tools.py",),
    "base/ray_executor.py": ("integration/test_ray.py",),
    "packing/sources/source.py": ("unit/packing/sources/test_detect.py",),
    "packing/sources/stored_rows.py": ("unit/packing/sources/arrays/test_zarr_source.py", "unit/packing/test_pack.py"),
    **{
        f"packing/sources/arrays/{name}.py": ("parity/test_packed_selections.py",)
        for name in ("data_call", "data_coordinates", "data_source")
    },
    "metadata/stores/stored_arrays.py": ("parity/test_packed_selections.py", "parity/test_verified_selections.py"),
    "metadata/group/beside.py": ("unit/metadata/group/test_coordinates.py",),
    "plan/order/read_blocks.py": ("unit/plan/order/test_order.py", "unit/plan/samples/test_selection.py"),
    "plan/order/order_state.py": ("unit/plan/order/test_order_rules.py", "unit/plan/shares/test_runs.py"),
    "plan/mixture/blend.py": ("unit/plan/mixture/test_mixed_order.py",),
    "plan/mixture/mixed_sequence.py": ("unit/plan/mixture/test_mixed_order.py",),
    "plan/mixture/source_lanes.py": ("parity/test_mixture_promises.py", "unit/plan/schedule/test_state.py"),
    "plan/patches/decode_count.py": ("unit/plan/patches/test_sweep_cost.py",),
    "plan/patches/patch_reads.py": ("parity/test_patches.py", "unit/report/test_patch_explanation.py"),
    "plan/schedule/order_terms.py": ("process/test_same_order.py",),
    "torch/ranks/same_order.py": ("process/test_same_order.py",),
    "report/order_figures.py": ("unit/report/test_source_shares.py", "unit/report/test_patch_explanation.py"),
    "plan/schedule/node_order.py": ("unit/plan/shares/test_affinity.py", "unit/torch/test_affinity.py"),
    "plan/order/remembered.py": ("unit/torch/passes/test_session.py",),
    "plan/order/groups.py": ("unit/plan/order/test_order.py", "unit/plan/mixture/test_mixed_order.py"),
    "plan/order/keyed_random.py": (
        "unit/plan/mixture/test_mixture.py",
        "unit/plan/mixture/test_mixed_order.py",
        "unit/plan/patches/test_tiling.py",
    ),
    "metadata/array/array_changes.py": (
        "unit/metadata/stores/test_array_watch.py",
        "unit/metadata/stores/test_growth.py",
    ),
    "metadata/group/field_sources.py": ("unit/metadata/group/test_fields.py",),
    "storage/chunks/metadata_documents.py": ("unit/metadata/stores/test_array_watch.py",),
    "torch/ranks/lightning_loops.py": ("integration/test_lightning_states.py",),
    "torch/passes/process_state.py": ("unit/torch/passes/test_session.py", "process/test_process_life.py"),
    "torch/passes/session_options.py": ("unit/torch/datasets/test_iterable_dataset.py",),
    "torch/datasets/array_requests.py": (
        "unit/torch/datasets/test_map_dataset.py",
        "unit/torch/datasets/test_look_ahead.py",
    ),
    "torch/datasets/stitched.py": ("unit/metadata/patches/test_stitching.py",),
    "plan/patches/columns.py": ("parity/test_patches.py", "unit/report/test_patch_explanation.py"),
    "metadata/patches/patching.py": ("parity/test_patches.py",),
    "metadata/description/alternatives.py": ("unit/report/test_shuffle_advice.py",),
    "metadata/description/planning.py": ("unit/torch/passes/test_versions.py", "unit/tools/test_dry_run.py"),
    "metadata/patches/patch_request.py": ("parity/test_patches.py",),
    "metadata/patches/selected_items.py": ("parity/test_patch_items.py",),
    "metadata/patches/patch_levels.py": ("parity/test_pyramids.py",),
    "spec/patches/level.py": ("parity/test_pyramids.py", "unit/metadata/group/test_multiscale.py"),
    "metadata/description/batch_sides.py": ("unit/metadata/group/test_fields.py", "parity/test_padding.py"),
    "plan/patches/listed_order.py": ("unit/plan/patches/test_position_blocks.py",),
    "metadata/patches/read_weights.py": ("parity/test_patch_random.py", "unit/tools/test_patch_weights.py"),
    "spec/patches/patch_weights.py": ("unit/tools/test_patch_weights.py",),
    "metadata/patches/turned_patches.py": ("parity/test_patch_turns.py",),
    "metadata/patches/patch_positions.py": ("parity/test_patch_positions.py",),
    "plan/samples/field_rows.py": ("parity/test_many_stores.py",),
    "metadata/stores/concat.py": ("parity/test_many_stores.py", "unit/engine/test_csr_reader.py"),
    "metadata/stores/stores_by_kind.py": ("parity/test_many_stores.py", "unit/engine/test_csr_reader.py"),
    "metadata/face/concat_data.py": ("parity/test_many_stores.py",),
    "metadata/stores/many_stores.py": ("parity/test_many_stores.py",),
    "metadata/stores/packed_sources.py": ("parity/test_mixed_packings.py",),
    "metadata/group/url_patterns.py": ("integration/test_many_remote.py",),
    "metadata/face/open_data.py": ("parity/test_many_stores.py",),
    "metadata/group/segments.py": ("parity/test_many_stores.py",),
    "metadata/array/store_metadata.py": ("parity/test_many_stores.py",),
    "metadata/patches/store_table.py": ("parity/test_many_stores.py",),
    "storage/chunks/parted_source.py": ("parity/test_many_stores.py",),
    "engine/sample_lookup.py": ("unit/engine/test_lookups.py", "unit/engine/test_ahead.py"),
    "engine/vlen_parts.py": ("parity/test_many_stores.py",),
    "spec/samples/row_map.py": ("unit/engine/test_row_maps.py",),
    "metadata/face/conditions.py": ("parity/test_conditions.py",),
    "metadata/face/data_choice.py": ("unit/metadata/face/test_data.py", "parity/test_conditions.py"),
    "metadata/face/data_items.py": ("unit/metadata/face/test_data.py",),
    "metadata/face/data_methods.py": ("unit/metadata/face/test_data.py",),
    "metadata/face/data_values.py": ("unit/metadata/description/test_value_calls.py", "parity/test_value_steps.py"),
    "metadata/array/requested_step.py": ("unit/metadata/array/test_conversion.py", "parity/test_value_steps.py"),
    "spec/values/value_step.py": ("parity/test_value_steps.py", "unit/metadata/description/test_denormalize.py"),
    "metadata/face/data_samples.py": ("unit/metadata/face/test_data.py",),
    "metadata/array/requested_conversion.py": ("unit/metadata/array/test_conversion.py", "parity/test_many_stores.py"),
    "spec/fields/tensor_spec.py": ("unit/engine/test_reader.py",),
    "spec/fields/window_fields.py": ("parity/test_padding.py",),
    "spec/description/freeze.py": ("unit/metadata/face/test_data.py",),
    "engine/element_blocks.py": ("unit/engine/test_csr_reader.py", "unit/metadata/group/test_anndata.py"),
    "metadata/group/variables.py": (
        "unit/engine/test_csr_reader.py",
        "unit/metadata/group/test_anndata.py",
        "unit/metadata/group/test_xarray.py",
        "unit/tools/test_cli.py",
    ),
    "spec/fields/sparse.py": ("unit/engine/test_csr_reader.py", "unit/metadata/group/test_anndata.py"),
    "metadata/stores/store_parts.py": ("parity/test_many_stores.py",),
    "plan/schedule/cursor.py": ("process/test_resume_exact.py",),
    "packing/targets/trial_store.py": ("unit/packing/targets/test_codec_trial.py",),
    "tools/advise/store_cost.py": ("unit/tools/advise/test_store_advice.py",),
    "tools/advise/advice_page.py": ("unit/tools/advise/test_store_advice.py",),
    "storage/append/append_journal.py": ("unit/storage/append/test_appender.py", "process/test_appending.py"),
    "storage/append/appended.py": ("unit/storage/append/test_appender.py",),
    "storage/access/retry.py": ("unit/spec/description/test_error_policy.py",),
    "metadata/group/chosen_columns.py": ("unit/engine/test_image_reader.py", "unit/engine/test_csr_reader.py"),
    "metadata/face/from_xarray.py": ("unit/metadata/group/test_xarray.py", "unit/metadata/face/test_data.py"),
    "metadata/array/host_memory.py": ("unit/metadata/group/test_fields.py",),
    "engine/batch_arrays.py": ("unit/engine/test_reader.py", "unit/spec/description/test_error_policy.py"),
    "report/describe.py": ("unit/report/test_display.py",),
    "report/explain_field.py": ("unit/report/test_explain.py", "unit/spec/fields/test_field_kind.py"),
    "report/field_explanation.py": ("unit/report/test_explain.py", "unit/report/test_sparse_explain.py"),
    "torch/batches/object_batch.py": (
        "unit/torch/datasets/test_object_iterable_dataset.py",
        "unit/torch/datasets/test_object_map_dataset.py",
    ),
    "torch/datasets/streaming.py": (
        "unit/torch/datasets/test_iterable_dataset.py",
        "unit/torch/datasets/test_object_iterable_dataset.py",
    ),
    "torch/batches/batch.py": ("unit/metadata/group/test_fields.py", "unit/spec/test_records.py"),
    "torch/batches/host_rows.py": ("unit/metadata/group/test_fields.py",),
    "torch/batches/tensors.py": ("unit/engine/test_reader.py", "parity/test_formats.py"),
    "__init__.py": ("integration/test_without_torch.py",),
    "objects.py": ("unit/storage/objects/test_list_objects.py",),
    "device.py": ("unit/torch/device/test_prefetch.py",),
    "torch/device/transfers.py": ("unit/torch/device/test_prefetch.py",),
    "__main__.py": ("unit/tools/test_cli.py",),
    "base/errors.py": ("robustness/test_bad_input.py", "unit/spec/description/test_error_policy.py"),
    "base/native.py": ("unit/storage/access/test_zarr_internals.py",),
    "base/optional_pillow.py": ("unit/engine/test_image_decoder.py",),
    "base/optional_torch.py": ("integration/test_without_torch.py",),
    "base/page.py": ("unit/report/test_display.py",),
    "base/validate.py": ("robustness/test_bad_input.py",),
    "spec/description/expression.py": ("unit/metadata/face/test_data.py",),
    "spec/fields/array_field.py": ("unit/spec/fields/test_field_kind.py",),
    "spec/fields/field.py": ("unit/metadata/group/test_fields.py", "unit/plan/blocks/test_blocks.py"),
    "spec/values/record.py": ("unit/spec/test_records.py",),
    "spec/arrays/sharding.py": ("parity/test_shards.py",),
    "plan/schedule/batch_request.py": ("unit/torch/datasets/test_map_dataset.py",),
    "plan/schedule/epoch_plan.py": ("unit/plan/shares/test_partition.py", "process/test_resume_exact.py"),
    "plan/schedule/schedule_options.py": ("unit/plan/order/test_rank_lanes.py",),
    "plan/samples/left_out.py": ("unit/plan/windows/test_window_rows.py",),
    "plan/choice/sample_choice.py": ("unit/metadata/face/test_data.py", "unit/plan/windows/test_window_rows.py"),
    "plan/choice/split.py": (
        "unit/metadata/face/test_data.py",
        "unit/plan/samples/test_selection.py",
        "unit/plan/windows/test_window_rows.py",
    ),
    "plan/shares/progress.py": ("unit/plan/shares/test_partition.py", "unit/plan/shares/test_runs.py"),
    "storage/access/access.py": ("integration/test_remote_access.py", "unit/storage/access/test_concurrency.py"),
    "checkpoint.py": ("unit/storage/checkpoint/test_checkpoint_file.py",),
    "storage/checkpoint/checkpoint_format.py": (
        "unit/storage/checkpoint/test_checkpoint_file.py",
        "unit/storage/test_checkpoint_faults.py",
    ),
    "storage/checkpoint/checkpoint_location.py": (
        "unit/storage/checkpoint/test_checkpoint_file.py",
        "unit/storage/test_checkpoint_faults.py",
    ),
    "storage/checkpoint/checkpoint_reader.py": (
        "unit/storage/checkpoint/test_checkpoint_file.py",
        "unit/storage/test_checkpoint_faults.py",
    ),
    "storage/checkpoint/checkpoint_sink.py": (
        "unit/storage/checkpoint/test_checkpoint_file.py",
        "unit/storage/test_checkpoint_faults.py",
    ),
    "storage/checkpoint/checkpoint_writer.py": (
        "unit/storage/checkpoint/test_checkpoint_file.py",
        "unit/storage/test_checkpoint_faults.py",
    ),
    "storage/chunks/node_cache.py": ("integration/test_node_cache.py",),
    "storage/chunks/transcoding.py": ("parity/test_transcode.py",),
    "storage/chunks/object_versions.py": ("integration/test_node_cache.py",),
    "engine/cache_stats.py": ("integration/test_node_cache.py",),
    "storage/access/given_stores.py": ("unit/storage/objects/test_object_source.py", "parity/test_stores.py"),
    "storage/access/store_errors.py": (
        "unit/spec/description/test_error_policy.py",
        "integration/test_remote_access.py",
    ),
    "storage/chunks/guarded_chain.py": ("unit/storage/chunks/test_codec_guards.py",),
    "storage/access/local_files.py": ("robustness/test_hostile.py", "robustness/test_corrupt.py"),
    "storage/chunks/location.py": ("parity/test_stores.py",),
    "storage/access/obstore_options.py": ("integration/test_remote_access.py",),
    "storage/access/read_counts.py": ("unit/storage/chunks/test_chunk_reader.py", "unit/engine/test_fetch_threads.py"),
    "storage/chunks/shard_reader.py": ("parity/test_shards.py", "parity/test_slow_shards.py"),
    "storage/access/urls.py": (
        "integration/test_remote.py",
        "integration/test_remote_access.py",
        "integration/test_real_servers.py",
    ),
    "storage/chunks/zarr_decoder.py": ("unit/storage/test_pipeline.py",),
    "storage/chunks/zfp_guard.py": ("unit/storage/chunks/test_codec_guards.py",),
    "metadata/description/weighting_calls.py": (
        "parity/test_weights.py",
        "unit/metadata/description/test_method_call.py",
    ),
    "metadata/description/sample_calls.py": (
        "unit/metadata/description/test_method_call.py",
        "unit/metadata/face/test_data.py",
    ),
    "metadata/description/item_calls.py": (
        "unit/metadata/description/test_method_call.py",
        "unit/metadata/face/test_data.py",
    ),
    "metadata/array/cf.py": ("unit/metadata/group/test_xarray.py", "unit/metadata/test_coordinate_conversion.py"),
    "metadata/array/codecs.py": ("unit/metadata/array/test_array.py", "repo/test_formats_table.py"),
    "metadata/face/data_page.py": ("unit/metadata/face/test_data.py",),
    "metadata/description/resolved.py": ("unit/metadata/face/test_data.py", "unit/metadata/array/test_conversion.py"),
    "metadata/group/source_names.py": ("unit/metadata/face/test_data.py",),
    "metadata/array/open.py": ("robustness/test_bad_input.py", "robustness/test_hostile.py"),
    "engine/reader_pool.py": ("unit/torch/datasets/test_iterable_dataset.py", "process/test_process_life.py"),
    "engine/object_fetcher.py": ("unit/torch/datasets/test_object_iterable_dataset.py",),
    "engine/object_reader.py": ("unit/torch/datasets/test_object_iterable_dataset.py",),
    "engine/store_bridge.py": ("parity/test_stores.py",),
    "engine/substitution.py": ("unit/spec/description/test_error_policy.py",),
    "report/advice.py": ("unit/engine/test_stats.py", "unit/tools/test_bench_command.py"),
    "report/notebook.py": ("unit/report/test_display.py",),
    "torch/passes/shared_file.py": ("unit/torch/passes/test_epochs.py", "unit/torch/passes/test_weightings.py"),
    "torch/passes/epoch_iterator.py": ("process/test_process_life.py", "process/test_interrupts.py"),
    "torch/datasets/options.py": ("robustness/test_bad_input.py",),
    "compat/ray.py": ("integration/test_ray.py",),
    "compat/lightning.py": ("integration/test_lightning_checkpoints.py",),
    "storage/checkpoint/shard_folder.py": (
        "unit/torch/checkpoint/test_storage_writer.py",
        "unit/storage/checkpoint/test_retention.py",
    ),
    "torch/checkpoint/storage_reader.py": (
        "unit/torch/checkpoint/test_storage_writer.py",
        "process/test_distributed_checkpoint.py",
    ),
    "tools/info_command.py": ("unit/tools/test_plot.py", "unit/tools/test_cli.py"),
    "tools/plot/": ("unit/tools/test_plot.py",),
    "tools/cli_parser.py": ("unit/tools/test_cli.py", "unit/base/test_suggestions.py"),
    "compat/dataflux/": ("unit/compat/test_dataflux.py", "integration/test_compat_dataflux.py"),
    "tools/bench/": ("unit/tools/test_bench_command.py",),
    "tools/cache/": ("unit/tools/test_cache_command.py", "process/test_shared_tools.py"),
    "tools/demo/": ("unit/tools/test_demo.py",),
    "spec/fields/stack.py": ("unit/metadata/group/test_stacking.py",),
    "spec/fields/batch_tensors.py": ("unit/metadata/group/test_stacking.py",),
    "spec/fields/static.py": ("unit/metadata/description/test_statics.py",),
    "torch/batches/static_tensors.py": ("unit/metadata/description/test_statics.py",),
    "spec/values/statistics.py": ("unit/tools/test_stats.py",),
    "metadata/description/measured_fields.py": ("unit/tools/test_stats.py", "unit/metadata/test_normalization.py"),
    "packing/sources/tables/arrow_columns.py": ("unit/packing/sources/tables/test_arrow_source.py",),
    "packing/sources/tables/arrow_files.py": ("unit/packing/sources/tables/test_arrow_source.py",),
    "packing/sources/arrays/hdf5_datasets.py": ("unit/packing/sources/arrays/test_hdf5_source.py",),
    "storage/files/npy_arrays.py": ("unit/packing/sources/arrays/test_npy_source.py", "unit/storage/files/test_npy.py"),
    "storage/files/open_file.py": ("unit/storage/files/test_npy.py", "unit/storage/files/test_netcdf3.py"),
    "packing/sources/items.py": ("unit/packing/sources/arrays/test_npy_source.py",),
    "packing/sources/file_source.py": ("unit/packing/sources/arrays/test_npy_source.py",),
    "tools/stats/": ("unit/tools/test_stats.py", "process/test_shared_tools.py"),
    "packing/sources/files.py": ("unit/packing/sources/images/test_image_folder.py",),
    "packing/sources/images/encoded_images.py": ("unit/packing/sources/images/test_image_folder.py",),
    "packing/sources/images/image_listing.py": ("unit/packing/sources/images/test_image_folder.py",),
    "packing/sources/images/tar_samples.py": ("unit/packing/sources/images/test_webdataset_source.py",),
    "tools/verify_command.py": ("unit/tools/test_verify.py",),
    "tools/stats_command.py": ("unit/tools/test_stats.py",),
    "tools/verify/": (
        "unit/tools/test_verify.py",
        "process/test_shared_tools.py",
        "parity/test_verified_selections.py",
    ),
}


def defines_something(path: Path) -> bool:
    """Return whether a module does more than to say what it is for and to import."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if path.name != "__init__.py" or path.parent == PACKAGE:
        return True
    return any(isinstance(node, definitions) for node in ast.parse(path.read_text()).body)


MODULES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if defines_something(p))


def file_of_its_name(module: str) -> Path:
    """Return the file that tests a module by its name."""
    folder, _, name = module.rpartition("/")
    return TESTS / "unit" / folder / f"test_{name}"


def lines_for(module: str) -> list[str]:
    """Return the lines of the table that say where a module is tested."""
    return [line for line in TESTED_IN if line == module or (line.endswith("/") and module.startswith(line))]


def test_it_is_told_once_where_a_module_is_tested() -> None:
    told = {
        module: [*lines_for(module), *([file_of_its_name(module).name] if file_of_its_name(module).exists() else [])]
        for module in MODULES
    }
    untold = [f"src/zarrfeed/{module}" for module in MODULES if not told[module]]
    assert untold == [], "these have neither a file of their name below tests/unit/ nor a line in TESTED_IN"
    assert {module: files for module, files in told.items() if len(files) > 1} == {}, "these are told of twice"


def test_a_line_names_modules_and_tests_that_exist() -> None:
    assert [line for line in TESTED_IN if not any(line in lines_for(module) for module in MODULES)] == []
    assert [line for line, names in TESTED_IN.items() if not names] == []
    missing = {name for names in TESTED_IN.values() for name in names if not (TESTS / name).is_file()}
    assert missing == set(), "tests/ has no such files"


def test_tests_lie_in_the_folder_of_a_layer() -> None:
    layers = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    for path in (TESTS / "unit").rglob("test_*.py"):
        assert path.relative_to(TESTS / "unit").parts[0] in layers, f"{path}: src/zarrfeed has no folder of that name"


def test_files_that_begin_first_exist() -> None:
    from tests.conftest import _LONG

    assert all((TESTS / name).is_file() for name in _LONG)
