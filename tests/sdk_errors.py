"""Errors of providers as their SDKs raise them, made by the SDKs themselves."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
from botocore.exceptions import ClientError
from google.genai import errors as google_errors


def of_anthropic(status: int, kind: str, text: str) -> Any:
    body = {"type": "error", "error": {"type": kind, "message": text}}
    client: Any = anthropic.Anthropic(api_key="-")
    return client._make_status_error_from_response(_answer(status, body))


def of_openai(status: int, code: str, text: str) -> Any:
    body = {"error": {"type": "invalid_request_error", "code": code, "message": text, "param": "messages"}}
    client: Any = openai.OpenAI(api_key="-")
    return client._make_status_error_from_response(_answer(status, body))


def of_openai_stream(code: str, text: str) -> Exception:
    request: Any = httpx.Request("POST", "http://localhost")
    return openai.APIError(text, request=request, body={"code": code, "message": text})


def of_google(status: int, text: str) -> Exception:
    body = {"error": {"code": status, "message": text, "status": "INVALID_ARGUMENT"}}
    return google_errors.ClientError(status, body)


def of_bedrock(status: int, code: str, text: str) -> Any:
    response: Any = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Converse")


class ContextWindowExceededError(openai.BadRequestError):
    """The class of LiteLLM, by its name."""


def of_litellm() -> Exception:
    response = _answer(400, {"error": {"message": "?"}})
    return ContextWindowExceededError("litellm.BadRequestError: no words", response=response, body=None)


def wrapped(error: Exception) -> Exception:
    outer = RuntimeError("the agent failed")
    outer.__cause__ = error
    return outer


def _answer(status: int, body: dict[str, Any]) -> Any:
    return httpx.Response(status, json=body, request=httpx.Request("POST", "http://localhost"))
