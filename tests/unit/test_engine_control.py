"""The control port over real sockets: who may ask, what is too much, and that no request takes the server down."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_engine.control import MAX_CONNECTIONS, ControlServer, TokenFiles, TokenMissing
from paceline_engine.limits import MAX_PEERS, PEER_BURST, PEER_RATE, TOTAL_BURST, TOTAL_RATE, Limiter, TooMany
from paceline_engine.protocol import MAX_BODY_BYTES, PolicyAck, ProtocolError, Reading, Samples, State
from tests.unit.engine_parts import AUTH, BOOT, TOKEN, Parts, ask, exchange, serving

ASKED = f"GET /samples HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n".encode()
POLICY = json.dumps({"generation": 1, "table": [0, 5, 3, 1, 1]})


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Parts, ControlServer]]:
    parts = Parts()
    with serving(parts) as server:
        yield parts, server


def test_the_three_requests(shared: tuple[Parts, ControlServer]) -> None:
    with serving(Parts()) as server:
        status, answer = ask(server.port, "GET /state")
        assert (status, State.model_validate(answer).table) == (200, BOOT)
        status, answer = ask(server.port, "PUT /policy", body=POLICY.encode())
        assert (status, PolicyAck.model_validate(answer).generation) == (200, 1)
        status, answer = ask(server.port, "GET /samples")
        samples = Samples.model_validate(answer)
        assert (status, samples.reset) == (200, True)
        status, answer = ask(server.port, f"GET /samples?cursor={samples.cursor}&x=1")
        assert (status, answer["reset"]) == (200, False)
        for cursor, reset in (("", True), (samples.cursor, False)):
            status, answer = ask(server.port, f"GET /state?samples={cursor}")
            both = Reading.model_validate(answer)
            assert (status, both.boot_id, both.samples and both.samples.reset) == (200, samples.boot_id, reset)


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer wrong\r\n",
        f"Authorization: Bearer {TOKEN}x\r\n",
        f"Authorization: Bearer {TOKEN[:-1]}\r\n",
        f"Authorization: Basic {TOKEN}\r\n",
        f"Authorization: {TOKEN}\r\n",
        "Authorization: Bearer \xe9\xff\r\n",
    ],
)
@pytest.mark.parametrize("line", ["GET /state", "GET /samples", "PUT /policy", "GET /nothing"])
def test_without_the_token_nothing_is_told_and_nothing_changes(
    shared: tuple[Parts, ControlServer], headers: str, line: str
) -> None:
    parts, server = shared
    before = parts.policy.plan
    status, answer = ask(server.port, line, headers, POLICY.encode() if line.startswith("PUT") else b"")
    assert (status, ProtocolError.model_validate(answer).reason) == (401, "Unauthorized")
    assert TOKEN not in answer["message"]
    assert parts.policy.plan is before


def test_samples_that_cannot_be_collected_are_told_once_until_they_can_be_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()
    phase: tuple[bool, threading.Semaphore] = (False, threading.Semaphore(0))

    def housekeep() -> None:
        fails, calls = phase
        calls.release()
        if fails:
            raise RuntimeError

    monkeypatch.setattr(parts.backend, "housekeep", housekeep)
    with serving(parts) as server:
        for failures in (1, 1, 2, 2):
            phase = (not phase[0], threading.Semaphore(0))
            for _ in range(3):  # when one call begins, what came of the one before is told
                ask(server.port, "GET /state")
                phase[1].acquire()
            assert len([record for record in caplog.records if "cannot be collected" in record.message]) == failures


def test_an_empty_token_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "current").write_text(f"{TOKEN}\n")
    (tmp_path / "previous").write_text("\n")
    assert TokenFiles(tmp_path)() == (TOKEN.encode(),)


def test_tokens_rotate_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("one")
    server = ControlServer(Parts().backend, TokenFiles(tmp_path), "127.0.0.1", 0)
    server.start()
    try:

        def status(token: str) -> int:
            return ask(server.port, "GET /state", f"Authorization: Bearer {token}\r\n")[0]

        assert (status("one"), status("two")) == (200, 401)
        (tmp_path / "previous").write_text("one")
        (tmp_path / "current").write_text("two")
        assert (status("one"), status("two")) == (200, 200)
        (tmp_path / "previous").unlink()
        assert (status("one"), status("two")) == (401, 200)
        (tmp_path / "current").unlink()
        assert (status(""), status("two")) == (401, 401)
    finally:
        server.close()


def test_without_a_token_the_port_is_never_opened(tmp_path: Path) -> None:
    server = ControlServer(Parts().backend, TokenFiles(tmp_path), "127.0.0.1", 0)
    with pytest.raises(TokenMissing):
        server.start()
    assert server.port == 0
    server.close()


def test_a_port_in_use_is_an_error_at_start(shared: tuple[Parts, ControlServer]) -> None:
    second = ControlServer(Parts().backend, lambda: (b"t",), "127.0.0.1", shared[1].port)
    with pytest.raises(OSError, match="in use"):
        second.start()


@pytest.mark.parametrize("line", ["GET /", "GET /policy", "PUT /state", "POST /policy", "DELETE /state", "OPTIONS *"])
def test_anything_else_is_not_here(shared: tuple[Parts, ControlServer], line: str) -> None:
    status, answer = ask(shared[1].port, line, body=b"{}")
    assert (status, answer["reason"]) == (404, "NotFound")
    assert "GET /state, PUT /policy, GET /samples" in answer["message"]


def test_an_oversized_body_is_refused_by_its_announcement_alone(shared: tuple[Parts, ControlServer]) -> None:
    for length in (str(MAX_BODY_BYTES + 1), "9" * 400):
        status, answer = ask(shared[1].port, "PUT /policy", body=b"{", length=length)
        assert (status, answer["reason"]) == (413, "TooLarge")
        assert str(MAX_BODY_BYTES) in answer["message"]


def test_a_peer_that_sends_an_oversized_body_all_the_same_reads_the_refusal(
    shared: tuple[Parts, ControlServer],
) -> None:
    status, answer = ask(shared[1].port, "PUT /policy", body=b" " * (2 * MAX_BODY_BYTES))
    assert (status, answer["reason"]) == (413, "TooLarge")


@pytest.mark.parametrize(
    ("length", "status", "reason"),
    [(None, 411, "LengthRequired"), ("-1", 400, "Malformed"), ("1e3", 400, "Malformed"), ("\xb2", 400, "Malformed")],
)
def test_a_body_without_a_length_is_refused(
    shared: tuple[Parts, ControlServer], length: str | None, status: int, reason: str
) -> None:
    got, answer = ask(shared[1].port, "PUT /policy", length=length)
    assert (got, answer["reason"]) == (status, reason)


def test_a_query_of_too_many_fields_is_refused(shared: tuple[Parts, ControlServer]) -> None:
    status, answer = ask(shared[1].port, f"GET /samples?{'a=1&' * 20}")
    assert (status, answer["reason"]) == (400, "Malformed")


def test_a_chunked_body_is_refused(shared: tuple[Parts, ControlServer]) -> None:
    status, _ = ask(shared[1].port, "PUT /policy", AUTH + "Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")
    assert status == 411


def test_a_body_that_ends_early_is_refused(shared: tuple[Parts, ControlServer]) -> None:
    parts, server = shared
    before = parts.policy.plan
    said = exchange(server.port, f"PUT /policy HTTP/1.1\r\n{AUTH}Content-Length: 500\r\n\r\n{POLICY}".encode())
    assert b" 400 " in said.split(b"\r\n")[0]
    assert b"ended after" in said
    assert parts.policy.plan is before


def test_a_peer_that_stops_sending_is_left_in_time() -> None:
    parts = Parts()
    with serving(parts, idle_seconds=0.05) as server:
        late = f"PUT /policy HTTP/1.1\r\n{AUTH}Content-Length: 500\r\n\r\n{{".encode()
        assert b" 408 " in exchange(server.port, late, finish=False).split(b"\r\n")[0]
        assert exchange(server.port, b"GET /sta", finish=False) == b""
        assert exchange(server.port, b"", finish=False) == b""
    assert parts.policy.plan.generation == 0


def test_a_peer_that_drips_does_not_hold_a_thread_beyond_the_deadline() -> None:
    with (
        serving(Parts(), deadline_seconds=0.1) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as drip,
    ):
        drip.settimeout(0.01)
        closed = False
        while not closed:
            try:
                drip.sendall(b"G")
                closed = drip.recv(10) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert ask(server.port, "GET /state")[0] == 200


def test_connections_are_bounded_and_one_too_many_is_told_to_come_again() -> None:
    with serving(Parts()) as server:
        address = ("127.0.0.1", server.port)
        held = [socket.create_connection(address, timeout=10) for _ in range(MAX_CONNECTIONS)]
        said = exchange(server.port, b"", finish=False)
        assert b" 503 " in said.split(b"\r\n")[0]
        assert json.loads(said.partition(b"\r\n\r\n")[2])["reason"] == "NotReady"
        for connection in held:
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(10) == b""
            connection.close()
        assert ask(server.port, "GET /state")[0] == 200


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda line, headers, body: f"{line} HTTP/1.1\r\n{AUTH}{headers}\r\n".encode("latin-1", "replace") + body,
        st.sampled_from(
            ["GET /state?a=b#c", "GET //[", "PUT /policy?x", "GET /samples?cursor=%ff&cursor=2", "GET http://["]
        )
        | st.text(max_size=30),
        st.sampled_from(
            ["", "Content-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 7\r\n", "Expect: 100-continue\r\n"]
        )
        | st.text(max_size=30),
        st.binary(max_size=20),
    )
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_bytes_take_the_server_down_or_change_the_table(shared: tuple[Parts, ControlServer], sent: bytes) -> None:
    parts, server = shared
    before = parts.policy.plan
    said = exchange(server.port, sent)
    if said.startswith(b"HTTP/"):
        assert b" 500 " not in said.split(b"\r\n")[0]
    assert parts.policy.plan is before
    assert ask(server.port, "GET /state")[0] == 200


RAW = (
    b"\x00\xff\xfe\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /state HTTP/9.9\r\n\r\n",
    b"GET /state HTTP/1.1 extra words\r\n\r\n",
    b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /state HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    b"GET /state HTTP/1.1\r\n" + b"X: x\r\n" * 200 + b"\r\n",
    b"GET /state HTTP/1.1\r\n: \r\n\r\n",
    b"PUT /policy HTTP/1.1\r\n" + AUTH.encode() + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n" + b"{" * 5000,
    b"PUT /policy HTTP/1.1\r\n" + AUTH.encode() + b"Content-Length: 9\r\n\r\n" + b"[" * 100_000,
    b"\r\n" * 5000,
)


@pytest.mark.parametrize("sent", RAW)
def test_what_is_not_http_gets_a_refusal(shared: tuple[Parts, ControlServer], sent: bytes) -> None:
    parts, server = shared
    said = exchange(server.port, sent)
    assert said.split()[1][:1] in (b"4", b"5") if sent.strip() else not said
    assert parts.policy.plan.generation == 0
    assert ask(server.port, "GET /state")[0] == 200


def test_of_pipelined_requests_the_first_is_answered_and_the_connection_closed() -> None:
    parts = Parts()
    one = f"GET /state HTTP/1.1\r\n{AUTH}\r\n"
    two = f"PUT /policy HTTP/1.1\r\n{AUTH}Content-Length: {len(POLICY)}\r\n\r\n{POLICY}"
    with serving(parts) as server:
        said = exchange(server.port, (one + two).encode())
    assert said.count(b"HTTP/1.1 ") == 1
    assert parts.policy.plan.generation == 0


def test_abuse_leaves_no_thread_and_no_file_behind() -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    with serving(Parts(), idle_seconds=0.2, deadline_seconds=0.2) as server:
        before = held()
        for sent in RAW * 3:
            exchange(server.port, sent)
            socket.create_connection(("127.0.0.1", server.port), timeout=10).close()
        end, answered = time.monotonic() + 60, 0
        while answered < 50 and time.monotonic() < end:  # on a busy machine some take longer than they may
            answered += exchange(server.port, ASKED, finish=False).startswith(b"HTTP/1.1 200 ")
        assert answered == 50
        while held() > before and time.monotonic() < end:
            exchange(server.port, ASKED, finish=False)
        assert held() <= before


def test_a_peer_that_asks_too_often_is_told_when_to_come_again_and_others_are_not_hindered() -> None:
    now = 0.0
    limiter = Limiter(lambda: now)
    for _ in range(int(PEER_BURST)):
        limiter.check("10.0.0.1")
    with pytest.raises(TooMany) as refusal:
        limiter.check("10.0.0.1")
    assert (refusal.value.status, refusal.value.retry_after) == (429, 1)
    limiter.check("10.0.0.2")
    now += 1.0
    for _ in range(int(PEER_RATE)):
        limiter.check("10.0.0.1")
    with pytest.raises(TooMany):
        limiter.check("10.0.0.1")


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 0.02)), max_size=300))
@settings(deadline=None, max_examples=30)
def test_all_peers_together_have_a_limit_and_only_some_are_remembered(asked: list[tuple[int, float]]) -> None:
    now = 0.0
    limiter = Limiter(lambda: now)
    for address in range(int(TOTAL_BURST)):
        limiter.check(str(address))
    answered = 0
    for peer, pause in asked:
        now += pause
        with suppress(TooMany):
            limiter.check(str(peer))
            answered += 1
    assert answered <= now * TOTAL_RATE + 1
    assert len(limiter._peers) <= MAX_PEERS


def test_an_operator_that_asks_thrice_a_second_is_never_refused() -> None:
    now = 0.0
    limiter = Limiter(lambda: now)
    for _ in range(10_000):
        now += 1 / 3
        limiter.check("10.0.0.1")


def test_too_many_requests_are_answered_with_429_and_a_time() -> None:
    limiter = Limiter(lambda: 0.0)
    for _ in range(int(PEER_BURST)):
        limiter.check("127.0.0.1")
    with serving(Parts(), limiter=limiter) as server:
        said = exchange(server.port, f"PUT /policy HTTP/1.1\r\n{AUTH}Content-Length: 2\r\n\r\n{{}}".encode())
    head, _, body = said.partition(b"\r\n\r\n")
    assert b" 429 " in head.split(b"\r\n")[0]
    assert b"Retry-After: 1" in head
    assert json.loads(body)["reason"] == "TooMany"


def test_a_request_under_way_when_the_engine_shuts_down_is_told_so_and_so_are_later_ones() -> None:
    parts = Parts()
    with serving(parts) as server:
        head = f"PUT /policy HTTP/1.1\r\n{AUTH}Content-Length: {len(POLICY)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(head.encode())
            parts.backend.close()
            connection.sendall(POLICY.encode())
            assert b" 503 " in connection.recv(100).split(b"\r\n")[0]
        assert ask(server.port, "GET /state")[0] == 503
    assert parts.policy.plan.generation == 0


def test_a_bug_of_ours_is_an_answer_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()

    def broken() -> State:
        raise ValueError("secret detail")

    parts.backend.state = broken  # type: ignore[method-assign]
    with serving(parts) as server:
        status, answer = ask(server.port, "GET /state")
        assert (status, answer["reason"]) == (500, "Internal")
        assert "secret detail" not in answer["message"]
        assert ask(server.port, "GET /samples")[0] == 200
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_many_at_once_are_all_answered() -> None:
    with serving(Parts()) as server:
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(server.port, "GET /state")[0]))
            for _ in range(MAX_CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [200] * MAX_CONNECTIONS


def test_a_closed_server_listens_no_more() -> None:
    parts = Parts()
    with serving(parts) as server:
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_the_loopback_of_the_newer_protocol_works_too() -> None:
    server = ControlServer(Parts().backend, lambda: (b"t",), "::1", 0)
    try:
        server.start()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with socket.create_connection(("::1", server.port), timeout=5) as connection:
        connection.sendall(b"GET /state HTTP/1.1\r\nAuthorization: Bearer t\r\n\r\n")
        assert b" 200 " in connection.recv(100).split(b"\r\n")[0]
    server.close()
