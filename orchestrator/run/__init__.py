"""The life of a run: lifecycle reads top-down; prepare, drive the loop, collect, conclude."""
