"""An optimizer whose state is divided among the ranks; see docs/sharded_optimizer.md."""
