"""A running server behind HTTP: SGLang's own interface, or the completions of OpenAI's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Literal, TypeAlias

import httpx
import msgspec

from kvproof.determinism.harness import Answer, Failure
from kvproof.kernels.engines.errors import EngineError

Api: TypeAlias = Literal["sglang", "openai"]

FIRST_WAIT_S = 0.5
"""Seconds before the first retry; each further one waits twice as long."""

_QUOTED_CHARS = 200
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a server says about itself; None for what it does not.

    Attributes:
        page_size: tokens per page of its prefix cache.
        max_running_requests: its request slots, more or less.
    """

    url: str
    api: Api
    model: str
    version: str | None = None
    page_size: int | None = None
    max_running_requests: int | None = None


class _RefusedError(Exception):
    """An answer of HTTP that trying again does not mend."""


class Server:
    """Completes prompts on a running server. Use it as a context manager."""

    def __init__(
        self,
        url: str,
        *,
        api: Api | None = None,
        model: str | None = None,
        timeout: float = 120.0,
        retries: int = 2,
        deadline: float | None = None,
        api_key: str | None = None,
        as_text: bool = False,
        detokenizer: Callable[[Sequence[int]], str] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Describe the connection; nothing is sent yet.

        Args:
            url: where it listens, without a path.
            api: its interface; None to find out.
            model: name to ask for; None for the one that it serves.
            timeout: seconds for one request.
            retries: how often a request is sent again that got no answer, or a status of 5xx.
            deadline: of `time.monotonic`, after which nothing is sent.
            api_key: sent as a bearer token; kept nowhere.
            as_text: send prompts as text, not as token ids.
            detokenizer: makes the text; None for the server's own endpoint.
            report: is told of every retry.
        """
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self.deadline = deadline
        self._as_text = as_text
        self._detokenizer = detokenizer
        self._api: Api | None = api
        self._model = model
        self._report = report
        self._described: Described | None = None
        self._stop = Event()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None)
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise _bad_url(url) from error
        if address.scheme not in ("http", "https") or not address.host:
            raise _bad_url(url)
        self._client = httpx.Client(
            base_url=self.url, timeout=timeout, headers=headers, limits=limits
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        self._client.close()

    def describe(self) -> Described:
        """Find out what listens there.

        Raises:
            EngineError: nothing does, or it is no server of a known interface.
        """
        if self._described is None:
            self._described = self._describe()
        return self._described

    def _describe(self) -> Described:
        if self._api != "openai":
            for path in ("/model_info", "/get_model_info"):
                info = self._look(path)
                if isinstance(info, Mapping) and isinstance(info.get("model_path"), str):
                    return self._describe_sglang(str(info["model_path"]))
        if self._api != "sglang":
            listed = self._look("/v1/models")
            models = listed.get("data") if isinstance(listed, Mapping) else None
            if isinstance(models, list) and models and isinstance(models[0], Mapping):
                name = self._model or str(models[0].get("id"))
                return Described(url=self.url, api="openai", model=name)
        if self._api is not None:
            raise EngineError(
                f"{self.url} does not answer as a server of the {self._api} interface does",
                fix="leave --api out, or give the other one",
            )
        raise EngineError(
            f"{self.url} answers neither /model_info (SGLang) nor /v1/models (OpenAI)",
            fix="give the address of the server itself, e.g. http://127.0.0.1:30001",
        )

    def _describe_sglang(self, path: str) -> Described:
        info: Any = None
        for place in ("/server_info", "/get_server_info"):
            info = self._look(place)
            if isinstance(info, Mapping):
                break
        known: Mapping[str, Any] = info if isinstance(info, Mapping) else {}
        return Described(
            url=self.url,
            api="sglang",
            model=self._model or path,
            version=known["version"] if isinstance(known.get("version"), str) else None,
            page_size=_count(known, "page_size"),
            max_running_requests=_count(known, "max_running_requests"),
        )

    def tokenize(self, text: str) -> list[int] | None:
        """Token ids of a text by the server's own tokenizer; None if it has no such endpoint."""
        request = {"model": self.describe().model, "prompt": text, "add_special_tokens": False}
        try:
            reply = self._post("/tokenize", request)
        except (_RefusedError, _NoAnswerError):
            return None
        tokens = reply.get("tokens") if isinstance(reply, Mapping) else None
        if isinstance(tokens, list) and all(type(token) is int for token in tokens):
            return tokens
        return None

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        output_len: int,
        *,
        at_once: int,
        salts: Sequence[str] | None = None,
    ) -> list[Answer | Failure]:
        """Complete all prompts at temperature 0, so many at once, in their order."""
        self.describe()
        keys: Sequence[str | None] = salts or [None] * len(prompts)
        with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(prompts)))) as pool:
            waiting = [
                pool.submit(self._complete, prompt, output_len, key)
                for prompt, key in zip(prompts, keys, strict=True)
            ]
            try:
                return [future.result() for future in waiting]
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _complete(
        self, prompt: Sequence[int], output_len: int, salt: str | None
    ) -> Answer | Failure:
        described = self.describe()
        body: dict[str, Any]
        try:
            sent = self._text(prompt) if self._as_text else list(prompt)
            if described.api == "sglang":
                body = {
                    "text" if self._as_text else "input_ids": sent,
                    "sampling_params": {"temperature": 0.0, "max_new_tokens": output_len},
                }
                body |= {"extra_key": salt} if salt else {}
                return _sglang_answer(self._post("/generate", body))
            body = {
                "model": described.model, "prompt": sent, "max_tokens": output_len,
                "temperature": 0.0,
            }  # fmt: skip
            body |= {"cache_salt": salt} if salt else {}
            return _openai_answer(self._post("/v1/completions", body))
        except _NoAnswerError as error:
            return error.failure
        except _RefusedError as error:
            return Failure(
                cause=str(error),
                fix="look into the server's log; prompts are sent as lists of token ids: give ids "
                "that it knows with --token-ids, its model's name with --model, or --send text",
            )

    def _text(self, prompt: Sequence[int]) -> str:
        if self._detokenizer is not None:
            return self._detokenizer(prompt)
        request = {"model": self.describe().model, "tokens": list(prompt)}
        reply = self._post("/detokenize", request)
        # SGLang calls it text, vLLM prompt.
        text = reply.get("text", reply.get("prompt")) if isinstance(reply, Mapping) else None
        if not isinstance(text, str):
            raise _RefusedError(f"/detokenize answers what is no text: {_quoted(repr(reply))}")
        return text

    def _look(self, path: str) -> Any:
        """JSON at a path, None if there is none; that nothing listens at all is an error."""
        try:
            reply = self._tried(lambda: self._client.get(path), path)
        except _NoAnswerError as error:
            raise EngineError(error.failure.cause, fix=error.failure.fix) from error
        except _RefusedError:
            return None
        return reply

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._tried(lambda: self._client.post(path, json=body), path)

    def _tried(self, send: Callable[[], httpx.Response], path: str) -> Any:
        """JSON of an answer, after some tries.

        Raises:
            _NoAnswerError: none came.
            _RefusedError: one came that trying again does not mend.
        """
        for attempt in range(self.retries + 1):
            if self.deadline is not None and time.monotonic() >= self.deadline:
                raise _NoAnswerError("the time limit of the run is over", "give more --time-limit")
            try:
                reply = send()
            except httpx.HTTPError as error:
                failure = self._transport(error, path)
            else:
                if reply.status_code not in _RETRIED_STATUSES:
                    return _json(reply, path)
                failure = _NoAnswerError(
                    f"{path} answers {reply.status_code}: {_quoted(reply.text)}",
                    "look into the server's log; it may have run out of memory or be starting",
                )
            if attempt < self.retries:
                wait = FIRST_WAIT_S * 2**attempt
                self._report(f"{failure.failure.cause}; again in {wait:g} s")
                if self._stop.wait(wait):
                    break
        raise failure

    def _transport(self, error: httpx.HTTPError, path: str) -> _NoAnswerError:
        if isinstance(error, httpx.TimeoutException):
            return _NoAnswerError(
                f"{path} did not answer within {self.timeout:g} s",
                "see whether the server hangs, or give it more time with --timeout",
            )
        if isinstance(error, httpx.ConnectError):
            return _NoAnswerError(
                f"nothing can be reached at {self.url}: {error}",
                "start the server, and give the address that it listens on",
            )
        return _NoAnswerError(
            f"{path} broke off: {type(error).__name__}: {error}",
            "see whether the server still runs, and look into its log",
        )


class _NoAnswerError(Exception):
    """A request got no answer, or only one that another try might mend."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause)
        self.failure = Failure(cause=cause, fix=fix)


def _bad_url(url: str) -> EngineError:
    return EngineError(f"{url!r} is no address", fix="give one like http://127.0.0.1:30001")


def _json(reply: httpx.Response, path: str) -> Any:
    if reply.status_code >= 400:
        raise _RefusedError(f"{path} answers {reply.status_code}: {_quoted(reply.text)}")
    try:
        return msgspec.json.decode(reply.content)
    except msgspec.DecodeError as error:
        raise _RefusedError(f"{path} answers what is no JSON: {_quoted(reply.text)}") from error


def _quoted(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= _QUOTED_CHARS else words[:_QUOTED_CHARS] + "...")


def _sglang_answer(reply: Any) -> Answer:
    if not isinstance(reply, Mapping):
        raise _RefusedError(f"/generate answers what is no completion: {_quoted(repr(reply))}")
    text, ids = reply.get("text"), reply.get("output_ids")
    if isinstance(ids, list) and ids:
        output = " ".join(map(str, ids))
    elif isinstance(text, str):
        output = text
    else:
        raise _RefusedError(f"/generate answers what is no completion: {_quoted(repr(reply))}")
    meta = reply.get("meta_info")
    said: Mapping[str, Any] = meta if isinstance(meta, Mapping) else {}
    return Answer(
        output=output,
        prompt_tokens=_count(said, "prompt_tokens"),
        cached_tokens=_count(said, "cached_tokens"),
    )


def _openai_answer(reply: Any) -> Answer:
    try:
        text = reply["choices"][0]["text"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise _RefusedError(
            f"/v1/completions answers what is no completion: {_quoted(repr(reply))}"
        )
    usage = reply.get("usage")
    said: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
    details = said.get("prompt_tokens_details")
    return Answer(
        output=text,
        prompt_tokens=_count(said, "prompt_tokens"),
        cached_tokens=_count(details if isinstance(details, Mapping) else {}, "cached_tokens"),
    )


def _count(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if type(value) is int and value >= 0 else None
