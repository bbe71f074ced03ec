"""etcd's keys, transactions and leases behind the interface of `EtcdClient`, in memory and without a network."""

from __future__ import annotations

import base64
import errno
from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.channel.etcd.client import EtcdRefused, EtcdSilent
from ftlaunch.nodes.channel.etcd.messages import GRANT, KEEP_ALIVE, RANGE, TXN

_NOT_FOUND = 5  # of gRPC


class FakeEtcd:
    """An etcd server, reached without a proxy, that can be told to lose an answer or to be silent."""

    where = "etcd at e1:2379"

    def __init__(self) -> None:
        self.revision = 1
        self.asked: list[str] = []  # the paths of all requests
        self.keys: dict[str, tuple[bytes, int]] = {}  # key -> value, and the lease of the key or 0
        self.leases: set[int] = set()
        self.lose_next_answer = self.silent = False

    def ask(self, path: str, request: Mapping[str, Any], patience_seconds: float = 0.0) -> dict[str, Any]:
        """Answer a request of etcd's JSON gateway.

        Raises:
            EtcdSilent: the server is silent, or its answer is lost.
            EtcdRefused: the request names a lease that does not exist.
        """
        self.asked.append(path)
        if self.silent:
            raise EtcdSilent(errno.EHOSTUNREACH, "e1:2379: no answer", self.where)
        answer = {RANGE: self._range, TXN: self._txn, GRANT: self._grant, KEEP_ALIVE: self._keep_alive}[path](request)
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise EtcdSilent(errno.EHOSTUNREACH, "e1:2379: no answer", self.where)
        return {"header": {"revision": str(self.revision)}, **answer}

    def expire(self, lease: int) -> None:
        """End a lease, with all its keys."""
        self.leases.remove(lease)
        self.keys = {key: (value, of) for key, (value, of) in self.keys.items() if of != lease}
        self.revision += 1

    def _range(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["key"] not in self.keys:
            return {}
        value = base64.b64encode(self.keys[request["key"]][0]).decode()
        return {"kvs": [{"key": request["key"], "value": value}], "count": "1"}

    def _txn(self, request: Mapping[str, Any]) -> dict[str, Any]:
        holds = all(map(self._holds, request["compare"]))
        responses = [self._perform(part) for part in request["success" if holds else "failure"]]
        return {**({"succeeded": True} if holds else {}), "responses": responses}

    def _holds(self, compare: Mapping[str, Any]) -> bool:
        there = self.keys.get(compare["key"])
        if compare["target"] == "VERSION":
            assert (compare["result"], compare["version"]) == ("EQUAL", "0")
            return there is None
        assert (compare["target"], compare["result"]) == ("VALUE", "LESS")
        return there is not None and there[0] < base64.b64decode(compare["value"])

    def _perform(self, part: Mapping[str, Any]) -> dict[str, Any]:
        ((kind, request),) = part.items()
        if kind == "requestRange":
            return {"response_range": self._range(request)}
        if kind == "requestTxn":
            return {"response_txn": self._txn(request)}
        lease = int(request["lease"])
        if lease and lease not in self.leases:
            raise EtcdRefused("requested lease not found", self.where, _NOT_FOUND)
        self.keys[request["key"]] = base64.b64decode(request["value"]), lease
        self.revision += 1
        return {"response_put": {}}

    def _grant(self, request: Mapping[str, Any]) -> dict[str, Any]:
        lease = len(self.asked) + 1000
        self.leases.add(lease)
        return {"ID": str(lease), "TTL": request["TTL"]}

    def _keep_alive(self, request: Mapping[str, Any]) -> dict[str, Any]:
        there = int(request["ID"]) in self.leases
        return {"result": {"ID": request["ID"], **({"TTL": "86400"} if there else {})}}
