"""etcd as the place where nodes meet, over its JSON gateway. Nothing here decides who becomes the head."""
