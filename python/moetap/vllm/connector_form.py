"""vLLM 0.32, whose rows go through a pair of connectors: puts ours where vLLM makes its own, in
engines that ask for it."""

import functools
from types import ModuleType
from typing import Any

from moetap._imports import once, when_imported
from moetap.vllm import transport


def install() -> None:
    """Changes vLLM's two classes as soon as they are imported. Installing again changes nothing."""
    when_imported("vllm.v1.worker.gpu.model_runner", _change_worker)
    when_imported("vllm.v1.core.sched.scheduler", _change_scheduler)


@once
def _change_worker(module: ModuleType) -> None:
    theirs = module.get_aux_output_connector

    @functools.wraps(theirs)
    def get_aux_output_connector(model: Any, vllm_config: Any, kv_cache_config: Any) -> Any:
        if transport(vllm_config) is None:
            return theirs(model, vllm_config, kv_cache_config)
        from moetap.vllm.worker import WorkerConnector

        return WorkerConnector(model, vllm_config, kv_cache_config)

    vars(module)["get_aux_output_connector"] = get_aux_output_connector
    runner = module.GPUModelRunner
    prepare_attn = runner.prepare_attn

    @functools.wraps(prepare_attn)
    def prepare_attn_and_keep_slots(self: Any, input_batch: Any) -> Any:
        block_tables, slot_mappings = prepare_attn(self, input_batch)
        if hasattr(self.aux_output_connector, "slot_mappings"):  # ours
            self.aux_output_connector.slot_mappings = slot_mappings
        return block_tables, slot_mappings

    runner.prepare_attn = prepare_attn_and_keep_slots


@once
def _change_scheduler(module: ModuleType) -> None:
    scheduler = module.Scheduler
    construct, shutdown = scheduler.__init__, scheduler.shutdown

    @functools.wraps(construct)
    def construct_with_connector(self: Any, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **options)
        if self.aux_output_connector is None or transport(self.vllm_config) is None:
            return
        from moetap.vllm.scheduler import SchedulerConnector

        self.aux_output_connector = SchedulerConnector(
            self.vllm_config, self.kv_cache_config, self.kv_cache_manager.get_block_ids
        )

    @functools.wraps(shutdown)
    def close_and_shutdown(self: Any) -> None:
        if self.aux_output_connector is not None and transport(self.vllm_config) is not None:
            connector, self.aux_output_connector = self.aux_output_connector, None
            connector.close()
        shutdown(self)

    scheduler.__init__, scheduler.shutdown = construct_with_connector, close_and_shutdown
