"""tmp"""
import sys, tempfile, shutil, time
from pathlib import Path
sys.path += [str(Path(__file__).parent)]
from trial import Trial, cpu_seconds
n=int(sys.argv[1]); beats=float(sys.argv[2]) if len(sys.argv)>2 else 0.1
home=Path(tempfile.mkdtemp())
t=Trial(home,n,beats=beats, options=["--no-report-page"])
try:
    t.start_head(); pid=t.head.pid
    b=time.monotonic(); c=cpu_seconds(pid)
    e=t.start_agents()
    print("begin", e-b, "cpu", cpu_seconds(pid)-c, "rss", t.head.memory_info().rss/2**20, flush=True)
    time.sleep(4)
    for i in range(3):
        b=time.monotonic(); c=cpu_seconds(pid); ca=[cpu_seconds(p.process.pid) for p in t.agents]
        time.sleep(4)
        d=time.monotonic()-b
        print("rest", (cpu_seconds(pid)-c)/d, "agents", [(cpu_seconds(p.process.pid)-x)/d for p,x in zip(t.agents,ca)], 0, flush=True)
    for i in range(2):
        for p in t.agents: p.ask("watch")
        c=cpu_seconds(pid)
        at=t.agents[0].ask("lose rank", agent=3)["at"]
        t.wait_starts(2+i,n)
        l=t.look()
        print("restart: leave", max(x["left"] for x in l)-at, "start", max(x["started"] for x in l)-at, "cpu", cpu_seconds(pid)-c)
        tr=t.agents[0].ask("traffic")
        print({k: round(v/len(tr["counts"]),2) for k,v in tr["names"].items()}, tr["counts"][0],tr["counts"][-1], tr["bytes"][0], tr["bytes"][-1],flush=True)
        time.sleep(4)
    k,s,m=t.succeed_head()
    print("successor", s-k, m-s, flush=True); time.sleep(3)
    print("finish", t.finish())
finally:
    print(t.said()[-2500:])
    t.close(); shutil.rmtree(home)
