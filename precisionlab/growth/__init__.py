"""How errors grow with depth, sequence length, batch and scale: measured at several sizes, fitted, forecast, confirmed."""
