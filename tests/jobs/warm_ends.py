"""Ends as END says; without torch, which it need not import."""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time

HOW, _, WORD = os.environ["END"].partition(" ")


def fail():
    try:
        {}["no such key"]
    except KeyError as error:
        raise ValueError("a bad\nvalue") from error


if HOW == "now":
    os._exit(int(WORD))
atexit.register(print, "at exit")
print("to stdout")
print("to stderr", file=sys.stderr)
if HOW == "exit":
    sys.exit(int(WORD))
if HOW == "signal":
    os.kill(os.getpid(), int(WORD))
    time.sleep(60)
if HOW == "segv":
    ctypes.string_at(0)
if HOW == "abort":
    os.abort()
if HOW == "text":
    sys.exit("a last word")
if HOW == "none":
    raise SystemExit
if HOW == "interrupt":
    raise KeyboardInterrupt
if HOW == "sigint":
    signal.raise_signal(signal.SIGINT)
if HOW == "thread":
    threading.Thread(target=lambda: (time.sleep(0.2), print("the thread is done"))).start()
if HOW == "thread fails":
    threading.Thread(target=fail).start()
if HOW == "hook":
    sys.excepthook = lambda *_: 1 / 0
if HOW == "hook exits":
    sys.excepthook = lambda *_: sys.exit(9)
if HOW == "syntax":
    compile("a b", "x.py", "exec")
if HOW in ("raise", "hook", "hook exits"):
    fail()
if HOW == "atexit fails":
    atexit.register(fail)
if HOW == "closed":
    sys.stdout.close()
