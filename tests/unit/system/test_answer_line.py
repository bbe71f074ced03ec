"""Answers of a helper come whole, whatever pieces the pipe hands over."""

from __future__ import annotations

import os

from ftlaunch.system.answer_line import AnswerReader


def test_an_answer_is_read_once_its_line_is_whole() -> None:
    read, write = os.pipe()
    answers = AnswerReader(read)
    assert answers.read() == []
    os.write(write, b'{"did": 1}\n{"di')
    assert answers.read() == [{"did": 1}]
    os.write(write, b'd": 2}\n[3]\n')
    assert answers.read() == [{"did": 2}, [3]]
    os.write(write, b"{")
    os.close(write)
    assert answers.read() == []
    assert answers.read() is None
    os.close(read)
