"""vecchip: a simulated vector chip with an assembly language, and the plugin that makes it a torch.compile backend."""
