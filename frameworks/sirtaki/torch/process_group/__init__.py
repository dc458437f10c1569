"""torch.distributed over Sirtaki: `init_process_group("sirtaki")`, for all that speaks torch.distributed.

`import sirtaki.torch` registers the backend. Where Sirtaki is installed, `import torch` alone does. The groups use the
engine of `hvd`: both interfaces may be used in one process. See docs/torch_distributed.md.
"""

from sirtaki.torch.process_group.registration import register

__all__ = ["register"]
