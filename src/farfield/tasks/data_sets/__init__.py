"""The data sets, a file each: how the papers built them, or how they are published."""
