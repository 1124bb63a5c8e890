"""mychip: a simulated chip, and the plugin that makes it a torch.compile backend."""
