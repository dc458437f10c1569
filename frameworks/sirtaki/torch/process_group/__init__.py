"""torch.distributed over Sirtaki: `init_process_group("sirtaki")`, for all that speaks torch.distributed.

The groups use the engine of `hvd`: both interfaces may be used in one process. See docs/torch_distributed.md.
"""
