"""The arbiter in etcd, over etcd's JSON gateway. Nothing here decides which process becomes the head."""
