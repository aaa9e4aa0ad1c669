"""What a stream of chunks says: tokens are counted by the server, a chunk is not one of them."""

import json
from typing import Any

import pytest

from tuner.engines.http_stream import CHUNKS, COUNTED, SPREAD, Answer


def event(tokens: int | None = None, text: str = "x", **extra: Any) -> bytes:
    value: dict[str, Any] = {"choices": [{"index": 0, "text": text}], **extra}
    if tokens is not None:
        value["usage"] = {"completion_tokens": tokens}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def total(tokens: int, **extra: Any) -> bytes:
    usage = {"completion_tokens": tokens, **extra}
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answer(*pieces: tuple[float, bytes], status: int = 200) -> Answer:
    made = Answer()
    made.status = status
    for now, data in pieces:
        made.feed(data, now)
    return made


def test_a_chunk_of_k_tokens_gives_k_equal_times() -> None:
    made = answer((1.0, event(1)), (2.0, event(5)), (3.0, event(8)), (3.0, total(8) + DONE))
    done = made.completion()
    assert done.token_s == (1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0)
    assert done.answered_tokens == 8
    assert (made.timing, made.problem()) == (COUNTED, "")


def test_a_chunk_without_a_new_token_gives_none() -> None:
    made = answer((1.0, event(1)), (2.0, event(1, "")), (3.0, event(2)), (4.0, total(2) + DONE))
    assert made.completion().token_s == (1.0, 3.0)


def test_a_total_alone_is_spread_over_the_chunks() -> None:
    made = answer(*((float(i), event()) for i in range(4)), (4.0, total(8) + DONE))
    assert made.completion().token_s == (0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0)
    assert made.timing == SPREAD


def test_chunks_without_text_count_only_where_the_total_says_so() -> None:
    chunks = [(0.0, event(text="")), (1.0, event()), (2.0, event()), (3.0, event(text=""))]
    assert answer(*chunks, (4.0, total(2) + DONE)).completion().token_s == (1.0, 2.0)
    assert answer(*chunks, (4.0, total(4) + DONE)).completion().token_s == (0.0, 1.0, 2.0, 3.0)
    assert answer(*chunks, (4.0, total(1) + DONE)).completion().token_s == (1.0,)


def test_a_count_on_the_last_chunk_alone_is_the_total() -> None:
    made = answer((0.0, event()), (1.0, event()), (2.0, event(6)), (2.0, DONE))
    assert made.completion().token_s == (0.0, 0.0, 1.0, 1.0, 2.0, 2.0)


def test_without_any_count_a_chunk_is_all_there_is() -> None:
    made = answer((0.0, event()), (1.0, event()), (2.0, event(text="") + DONE))
    assert made.completion().token_s == (0.0, 1.0)
    assert made.timing == CHUNKS


def test_bytes_may_be_cut_anywhere() -> None:
    whole = event(1) + b": a comment\r\n" + event(3).replace(b"\n", b"\r\n") + total(3) + DONE
    made = answer(*((float(i), whole[i : i + 1]) for i in range(len(whole))))
    assert made.problem() == ""
    assert made.completion().answered_tokens == 3
    assert made.completion().token_s[0] < made.completion().token_s[1]


def test_cached_tokens_come_with_the_total() -> None:
    made = answer((1.0, event(1)), (1.0, total(1, prompt_tokens_details={"cached_tokens": 64})))
    assert made.completion().cached_tokens == 64
    plain = answer((1.0, event(1)), (1.0, total(1, prompt_tokens_details=None)))
    assert plain.completion().cached_tokens is None


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (429, b'{"error":{"message":"full","code":429}}', "status 429: full"),
        (400, b'{"message":"too long"}', "status 400: too long"),
        (422, b'{"detail":"bad"}', "status 422: {'detail': 'bad'}"),
        (500, b"<html>broken</html>", "status 500: <html>broken</html>"),
        (503, b"", "status 503: no message"),
        (200, b'data: {"error":{"message":"broke"}}\n\ndata: [DONE]\n\n', "broke"),
        (200, b"data: {nonsense\n\n", "not JSON: b'{nonsense'"),
    ],
)
def test_an_error_is_told_in_its_own_words(status: int, body: bytes, said: str) -> None:
    assert answer((0.0, body), status=status).problem() == said


def test_a_stream_that_just_ends_is_no_full_answer() -> None:
    made = answer((0.0, event(1)), (1.0, event(2)))
    made.total = None
    assert "ended after 2 tokens" in made.problem()
