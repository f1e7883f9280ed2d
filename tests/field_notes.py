"""What goes wrong in this job, as creators report it: each kind of fault, what happens here instead, and the tests that show it.

Tests are named "file::test" or "file::test[words that its parameters hold]". tests/test_field_notes.py checks the list.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = "test_field_notes_host"
INPUTS, KEYS, DENSE, REPLAY = (f"test_host_{n}" for n in ("inputs", "keys", "dense", "replay"))


@dataclass(frozen=True)
class Row:
    """group and name: the fault; then: the right behaviour; tests: what shows it."""

    group: str
    name: str
    then: str
    tests: tuple[str, ...]


def _rows(group: str, rows: list[tuple[str, str, list[str]]]) -> list[Row]:
    return [Row(group, name, then, tuple(tests)) for name, then, tests in rows]


ROWS = _rows("shapes", [
    ("odd latent size", "the grid comes from the padded size, masks are cropped", [
        "test_backbones::test_the_token_grid_counts_whole_patches",
        "test_regions::test_latent_weights_repeat_tokens_and_crop_the_padding",
        f"{HOST}::test_odd_sizes_and_single_frames[9, 11]"]),
    ("tokens no multiple of a block", "ragged last block; all blocks kept is dense attention", [
        "test_kernels::test_all_blocks_kept_is_dense_attention_exactly", "test_kernels::test_density_counts_live_tokens"]),
    ("a shape that fails late", "everything is checked before the first step", [
        f"{KEYS}::test_a_changed_request_is_another_key", "test_gate::test_other_grids_are_a_miss_with_the_reason",
        "test_connectivity::test_restrict_says_what_does_not_fit", "test_kernels::test_the_api_shows_what_it_was_given"]),
    ("48 channels, stride 16", "strides and patches belong to the family", [
        f"{HOST}::test_every_family_has_its_strides",
        f"{HOST}::test_a_model_of_48_channels_with_a_time_for_each_token",
        "test_adopt_host::test_it_runs_as_it_would_without_the_node"]),
    ("a connectivity row without a block", "its own block is kept", [
        "test_kernels::test_empty_rows_get_their_own_blocks", "test_kernels::test_empty_rows_are_not_nan",
        "test_connectivity::test_a_row_without_context_keys_sees_its_own_tokens"]),
    ("one latent frame", "its frame is the tail", [f"{HOST}::test_odd_sizes_and_single_frames[16, 1, 8]"]),
    ("sizes typed in that round to others", "the latent's shape is the key", [
        f"{HOST}::test_sizes_that_make_the_same_latent_are_the_same_render",
        f"{KEYS}::test_a_changed_request_is_another_key"]),
    ("a small clip", "sparse and restricted layers are off where they cost more", [
        "test_connectivity::test_small_clips_and_dense_histories_stay_dense",
        "test_reuse::test_small_clips_are_not_restricted_by_default"]),
]) + _rows("guidance, batch, samplers", [
    ("a batch of two", "declines", [f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[batch of two]"]),
    ("branches batched, split or flipping", "the branch is the key, never the place in the batch", [
        "test_backbones::test_branches_that_are_batched_once_and_split_later_find_their_own_differences",
        f"{HOST}::test_branches_batched_in_the_history_and_split_in_the_target"]),
    ("cfg 6 remembered, cfg 1 asked", "a miss with the reason", [f"{KEYS}::test_a_changed_request_is_another_key[cfg, negative]"]),
    ("several, regional, timed prompts, hooks", "declines", [
        f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[two positive prompts]",
        f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[a prompt for some area]",
        f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[a prompt for some steps]",
        f"{HOST}::test_conditioning_that_carries_more_than_a_prompt[hooks]"]),
    ("several model calls a step", "steps are told by sigma", [
        "test_reuse::test_steps_are_told_by_sigma_not_by_counting_calls",
        "test_record::test_the_two_calls_of_heun_at_one_sigma_are_both_replayed_in_order",
        f"{REPLAY}::test_a_full_replay_equals_its_recording"]),
    ("empty and standing schedules, start at or past the end", "no-op", [
        f"{INPUTS}::test_a_schedule_without_steps", f"{INPUTS}::test_a_schedule_that_stands_still",
        f"{HOST}::test_a_part_of_a_schedule_that_holds_no_step"]),
    ("one model, two samplers", "state belongs to a sampling call", [f"{KEYS}::test_one_model_feeds_two_samplers"]),
    ("KSamplerAdvanced pairs", "one render of two experts, or declines", [
        "test_host_experts::test_one_history_spans_both_experts",
        "test_host_experts::test_halves_that_do_not_belong_together_are_rendered_as_ever"]),
    ("schedules of equal length", "keyed on sigmas", [
        f"{HOST}::test_schedules_of_equal_length_are_told_apart_by_their_sigmas",
        f"{REPLAY}::test_a_schedule_given_by_hand_is_the_same_render_when_its_sigmas_are",
        "test_record::test_a_sigma_after_a_float16_trip_is_still_the_same_step"]),
    ("four-step distilled models", "declines", [f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[four steps]"]),
    ("guiders with a third pass", "the pass is never lost", [
        f"{HOST}::test_a_guider_s_own_pass_is_never_lost", f"{INPUTS}::test_a_guider_with_passes_of_its_own"]),
]) + _rows("what else is in the graph", [
    ("the node bypassed or removed", "as if it had never been", [f"{DENSE}::test_a_bypassed_or_removed_node_leaves_no_trace"]),
    ("one loader, two branches", "the other branch is untouched", [
        f"{DENSE}::test_a_bypassed_or_removed_node_leaves_no_trace",
        f"{KEYS}::test_the_key_is_the_clone_s_own_whatever_is_loaded"]),
    ("only the prompt or seed changes in the queue", "each run decides anew", [f"{HOST}::test_each_queued_run_decides_anew"]),
    ("the same workflow queued twice", "nothing runs again", [f"{HOST}::test_the_same_workflow_queued_twice_runs_once"]),
    ("another LoRA strength, checkpoint, precision", "another key", [
        f"{KEYS}::test_a_changed_model_is_another_key", f"{INPUTS}::test_a_bank_of_another_model",
        f"{HOST}::test_other_precision_is_another_key"]),
    ("an interrupt", "re-raised; nothing partial stays", [
        f"{DENSE}::test_an_interrupt_while_recording_keeps_nothing",
        f"{DENSE}::test_an_interrupt_while_reusing_leaves_the_bank_and_the_next_run_alone"]),
    ("another step cache", "a step that was not computed is never stored", [
        f"{INPUTS}::test_neighbours_that_change_the_sampling[easycache]", "test_bank::test_broken_renders_are_refused[step cache]",
        "test_adopt::test_a_cache_behind_a_named_wire_is_seen"]),
    ("another pack's attention, an unknown argument", "chained, passed through", [
        "test_host_patching::test_another_pack_s_attention_is_chained_and_keeps_its_effect",
        "test_host_patching::test_a_mask_and_arguments_nobody_knows_are_left_to_the_host[something_new]",
        "test_host_connectivity::test_another_pack_s_attention_is_neither_recorded_nor_replaced"]),
    ("a mask given to attention", "never dropped", [
        "test_host_patching::test_a_mask_and_arguments_nobody_knows_are_left_to_the_host[mask]"]),
    ("pictures, masks, references, windows, audio", "declines in words", [
        f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[noise mask]",
        f"{INPUTS}::test_carnator_reuse_steps_aside_in_words[another latent]",
        f"{HOST}::test_conditioning_that_carries_more_than_a_prompt[reference_latents]",
        f"{HOST}::test_context_windows_decline_in_words", f"{HOST}::test_a_nested_audio_video_latent_declines_in_words",
        "test_adopt_host::test_it_runs_as_it_would_without_the_node",
        "test_adopt::test_a_reason_for_each_kind_that_it_does_not_serve"]),
    ("torch.compile", "the eager result; nothing is patched into a compiled forward", [
        "test_host_features::test_a_compiled_model_is_recorded_and_reused_without_anything_patched_into_it"]),
    ("previews", "copies are stored; a preview's fault stops nothing", [
        f"{REPLAY}::test_a_replay_shows_its_steps_to_previews_and_progress",
        f"{REPLAY}::test_a_preview_that_writes_into_what_it_is_shown_spoils_nothing",
        f"{INPUTS}::test_a_vae_that_cannot_decode_costs_the_colours_alone",
        f"{INPUTS}::test_a_status_line_that_fails_costs_nothing"]),
]) + _rows("memory, files, processes", [
    ("little memory", "weights are moved and cast where they are used", [
        "test_host_features::test_weights_that_move_at_use",
        f"{HOST}::test_other_precision_is_another_key",
        f"{HOST}::test_branches_batched_in_the_history_and_split_in_the_target"]),
    ("bank and model of other precisions", "cast at use; precision is a part of the key", [
        f"{HOST}::test_other_precision_is_another_key",
        "test_reuse::test_what_is_served_has_the_model_s_dtype_also_after_a_restart"]),
    ("NaN or a flat latent", "refused", [
        f"{INPUTS}::test_a_render_that_is_not_a_number_is_refused", "test_bank::test_broken_renders_are_refused[flat]"]),
    ("a file cut short, or a page under its name", "put aside, one warning, a miss", [
        "test_bank_damage::test_files_of_any_other_length_are_found", "test_bank_damage::test_crafted_tensor_files_are_refused",
        f"{INPUTS}::test_an_entry_that_is_cut_short_is_a_miss_and_one_warning"]),
    ("no space left", "the video is saved, the half entry is gone", [
        f"{HOST}::test_a_full_disk_costs_the_entry_alone", "test_bank::test_a_failed_store_leaves_nothing",
        "test_bank_life::test_free_disk_is_left_alone"]),
    ("two processes, one killed", "no torn or lost entry; what is read stays", [
        "test_bank_kill::test_killed_writers_leave_a_sound_bank", "test_bank_life::test_two_banks_on_one_folder_see_each_other",
        "test_bank_life::test_what_is_being_read_is_not_evicted"]),
    ("overwriting what another maps", "a new name every time", ["test_field_notes::test_no_file_of_an_entry_is_written_twice"]),
    ("emoji, Chinese, a plain locale", "UTF-8 files, ASCII logs", [
        "test_field_notes::test_a_bank_of_any_name_in_a_plain_locale", "test_bank::test_card_tells_what_recall_needs",
        f"{INPUTS}::test_carnator_reuse_steps_aside_in_words"]),
    ("a backslash in a model's name", "weights are the key, not names", [
        f"{KEYS}::test_the_same_weights_loaded_again_are_the_same_model", "test_adopt::test_names_of_model_files_decide_nothing"]),
    ("a workflow where the bank does not exist", "an empty bank", [
        "test_bank::test_no_folder_is_an_empty_bank", f"{INPUTS}::test_without_a_bank_link_the_default_bank_is_used"]),
    ("no network, no parser, no weights", "it loads, explains, and uses what it has", [
        "test_field_notes::test_it_loads_without_network_and_without_a_parser",
        "test_prompt::test_without_spacy_there_is_a_reason"]),
]) + _rows("prompts", [
    ("the host's syntax", "stripped as the host does", [
        "test_prompt_syntax::test_stripped", "test_prompt_syntax::test_weights_are_stripped_as_the_host_does"]),
    ("words of camera and style", "no entities", [
        "test_prompt::test_what_is_an_entity_and_what_is_none", "test_prompt::test_camera_and_look_are_the_scenes"]),
    ("case, spaces, quotes", "the same entities", [
        "test_prompt_vbench::test_harmless_edits_change_no_entity_set", "test_prompt_syntax::test_tidy_form"]),
    ("compounds and possessors", "one entity a thing", ["test_prompt::test_one_entity_per_thing_with_its_span"]),
    ("bare nouns", "found, or said to be missing", ["test_prompt::test_bare_nouns"]),
    ("count, negation, direction, swapped colours", "not the same scene", [
        "test_recall::test_class_that_must_not_match",
        "test_recall::test_colours_swapped_between_things_are_two_differences",
        "test_recall::test_class_spatial_relation_change_keeps_only_true_layouts",
        "test_gate::test_a_shared_entity_that_moves_the_other_way_refuses"]),
    ("long prompts", "late words count; a subject may be given", [
        "test_recall::test_a_difference_in_a_late_slot_counts", "test_prompt_vbench::test_prompts_of_more_than_two_hundred_words",
        "test_recall::test_a_long_prompt_is_advised_to_give_its_subject"]),
    ("no entity, empty, Chinese", "a reason, dense", [
        f"{INPUTS}::test_a_prompt_that_names_nothing_known", "test_prompt::test_reasons_for_no_entities",
        "test_prompt_chinese::test_without_the_model_the_reason_says_what_to_do"]),
    ("only the negative prompt changes", "a part of the key", [
        f"{KEYS}::test_a_changed_request_is_another_key[negative]",
        f"{KEYS}::test_the_negative_prompt_does_not_matter_where_it_is_not_used"]),
])
