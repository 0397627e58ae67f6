"""Tests marked ``slow`` for how long JAX compiles for them: ``make test-slow`` runs them, ``make test`` does not.

Each has a shorter relative in ``make test``: the same on torch, other parameters, or the case of the same number.
"""

__all__ = ["LONG"]

LONG = (
    "tests/algorithms/test_checkpointing.py::test_a_checkpoint_of_one_engine_is_the_same_on_the_other[jax]",
    "tests/algorithms/test_checkpointing.py::test_a_run_resumed_in_a_new_process_equals_the_uninterrupted_one_bit_for_bit",
    "tests/algorithms/test_distillation.py::test_dict_actions_are_taught_key_by_key[jax]",
    "tests/algorithms/test_distillation.py::test_several_iterations_in_one_call_are_those_one_by_one",
    "tests/algorithms/test_distillation.py::test_the_first_loss_by_hand[jax-jax-functional]",
    "tests/algorithms/test_options.py::test_a_weight_of_all_samplers_is_that_of_each[jax]",
    "tests/algorithms/test_options.py::test_with_nothing_learnt_targets_anew_are_the_old_ones[jax]",
    "tests/algorithms/test_shared_weights.py::test_it_is_trained_as_one_place_would_be[jax]",
    "tests/algorithms/test_update.py::test_statistics_rest_on_every_valid_step_once[jax]",
    "tests/backends/test_products.py::test_a_run_that_was_saved_goes_on_bit_for_bit[jax]",
    "tests/backends/test_products.py::test_over_time_it_is_the_step_by_step_scan_with_its_gradients[jax-gru]",
    "tests/backends/test_products.py::test_over_time_it_is_the_step_by_step_scan_with_its_gradients[jax-rnn]",
    "tests/backends/test_products.py::test_replay_repeats_the_rollout[jax-gru]",
    "tests/backends/test_products.py::test_replay_repeats_the_rollout[jax-mlp]",
    "tests/backends/test_products.py::test_training_keeps_the_first_ratio_at_1_and_everything_in_float32[jax]",
    "tests/docs/test_docs.py::test_a_page_runs[jax-asymmetric_critics]",
    "tests/docs/test_docs.py::test_a_page_runs[jax-brax]",
    "tests/docs/test_docs.py::test_a_page_runs[jax-checkpoints]",
    "tests/docs/test_docs.py::test_a_page_runs[jax-recording]",
    "tests/docs/test_docs.py::test_a_page_runs[jax-sequences]",
    "tests/docs/test_docs.py::test_a_page_runs[jax-stable_baselines3]",
    "tests/examples/test_distillation.py::test_a_few_steps[backends0]",
    "tests/examples/test_neural_circuit.py::test_a_few_steps[jax]",
    "tests/examples/test_population_graph.py::test_a_few_steps[jax]",
    "tests/networks/graph/test_modules.py::test_every_kind_of_module_over_time_and_its_gradients[jax]",
    "tests/networks/samplers/test_base.py::test_one_key_gives_the_same_actions_on_both_engines",
    "tests/networks/samplers/test_base.py::test_replay_repeats_the_rollout_and_every_step_draws_anew[jax-bernoulli]",
    "tests/networks/test_adapter.py::test_an_asymmetric_network_trains[jax]",
    "tests/networks/test_adapter.py::test_each_head_learns_from_the_reward_of_its_key[jax-separate]",
    "tests/networks/test_dropout.py::test_a_network_with_dropout_and_a_gru_trains[jax]",
    "tests/networks/test_factories.py::test_an_image_is_divided_once_and_not_normalised[jax]",
    "tests/networks/test_factories.py::test_networks_of_everything_train[jax-lstm]",
    "tests/networks/test_factories.py::test_networks_of_everything_train[jax-mlp]",
    "tests/networks/test_image_factories.py::test_it_trains[jax]",
    "tests/networks/test_recording.py::test_over_time_in_parallel_and_step_by_step[jax]",
    "tests/networks/test_unrolling.py::test_unroll_is_the_scan[jax-leaves, sampled]",
)
"""Beginnings of node ids."""
