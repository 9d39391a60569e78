"""How a pool reaches its shards: in this process, or in worker processes."""
