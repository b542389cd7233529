"""The operating system: processes, cgroups, namespaces, traffic control, inotify, host and GPU facts, the engine's socket."""
