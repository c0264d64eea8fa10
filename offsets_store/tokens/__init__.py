"""Which tokens of clouds are there in the place of passwords? One module a cloud."""
