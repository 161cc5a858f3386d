"""Engines: how a federation reaches its clients. Each module is one engine, or a part of one."""
