"""The operating system: processes, network namespaces, traffic control, inotify, engine sockets."""
