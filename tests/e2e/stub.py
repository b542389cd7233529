"""The rank code of the beds under test that train nothing."""

#: A rank that does what its params say. ``stray``: it leaves a forked and an exec'd process in sessions of their own;
#: ``bare``: and one that has lost its environment as well.
RANK = '''
import json, os, subprocess, sys, time
def main(gang, rank, *, events_path, release_fd, node, incarnation, imports=""):
    print("rank", rank, "torch" in sys.modules, os.environ["CCBED_NODE"], flush=True)
    with open(os.path.join(gang.out, f"steps-r{rank}.jsonl"), "w") as steps:
        for step in range(1, int(gang.params.get("steps", 0)) + 1):
            steps.write(json.dumps({"step": step}) + "\\n")
        steps.write('{"step": 99')
    if gang.params.get("stray"):
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(1)
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if gang.params.get("bare"):
        subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    while gang.params.get("spawn"):
        subprocess.run(["true"])
    if gang.params.get("release"):
        print("released", os.read(release_fd, 100).decode(), flush=True)
    if gang.params.get("until_killed"):
        while True: time.sleep(1)
    return int(gang.params.get("code", 0))
'''  # fmt: skip
