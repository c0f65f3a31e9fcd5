"""The page at `/`, for somebody who never saw a command line: a text, a button, the answer. It loads nothing else."""

import html as html_text
import re

# Nothing but this page's own script and style, and requests to the server that it came from.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>NAME</title>
<style>
:root { color-scheme: light dark; }
body { font: 17px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem; }
textarea, input { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; }
button { font: inherit; margin: .8rem 0; padding: .4rem 1.6rem; }
#answer { white-space: pre-wrap; overflow-wrap: anywhere; min-height: 1.5em; }
#answer { border-left: 4px solid #999; padding: .2rem .8rem; }
#answer:empty { border-color: transparent; }
#answer.error { border-color: #c33; }
#more { overflow-wrap: anywhere; }
#example { border: 0; background: none; color: inherit; padding: 0; text-align: start; }
#example { text-decoration: underline; cursor: pointer; }
</style>
</head>
<body>
<h1>NAME</h1>
<form id="form">
<p><label for="text">TASK</label></p>
<p><textarea id="text" rows="4" dir="auto" required autofocus></textarea></p>
<p EXAMPLE_HIDDEN>Example: <button type="button" id="example" dir="auto">EXAMPLE</button></p>
<p id="of_token" HIDDEN><label for="token">The server's token</label>
<input id="token" type="password" autocomplete="off"></p>
<button id="ask">Ask</button>
<button type="button" id="others" OTHERS_HIDDEN>Other answers</button>
</form>
<p id="answer" dir="auto" aria-live="polite"></p>
<ol id="more" aria-live="polite"></ol>
<script>
const find = (id) => document.getElementById(id);
const post = async (question) => {
  const token = find("token").value;
  if (/[^!-~]/.test(token)) throw new Error("A token has letters, digits and signs of ASCII, and no blanks.");
  const headers = {"Content-Type": "application/json"};
  if (token) headers.Authorization = "Bearer " + token;
  const body = JSON.stringify(question);
  const reply = await fetch("/v1/completions", {method: "POST", headers, body})
    .catch((error) => { throw new Error(`The server does not answer; does it still run? (${error.message})`); });
  if (reply.status == 401) throw new Error(token ? "This token is wrong." : "Write the server's token.");
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error.message);
  return found.choices;
};
const shown = ({text, finish_reason}) =>
  (text || "(an empty answer)") + (finish_reason == "length" ? " … (cut: answers are no longer here)" : "");
const list = (lines) => find("more").replaceChildren(...lines.map((line) => {
  const item = document.createElement("li");
  item.dir = "auto";
  item.textContent = line;
  return item;
}));
const ask = async () => {
  const [choice] = await post({prompt: find("text").value, candidates: CANDIDATES});
  find("answer").textContent = shown(choice) + (choice.hint ? "\\n(" + choice.hint + ")" : "");
  list((choice.candidates || []).map((words) => words.length
    ? words.map(({text, probability}) => `${text} ${(100 * probability).toFixed(1)}%`).join(", ")
    : "(no words)"));
};
const ask_others = async () => {
  const prompt = Array(OTHERS).fill(find("text").value);
  const found = [...new Set((await post({prompt, temperature: 0.8})).map(shown))];
  find("answer").textContent = "Drawn at a temperature of 0.8:";
  list(found);
};
const answering = async (asking) => {
  const answer = find("answer");
  const focused = document.activeElement;
  answer.className = "";
  answer.textContent = "…";
  list([]);
  const buttons = [find("ask"), find("others")];
  buttons.forEach((button) => { button.disabled = true; });
  try {
    await asking();
  } catch (error) {
    answer.className = "error";
    answer.textContent = error.message;
  }
  buttons.forEach((button) => { button.disabled = false; });
  focused.focus();
};
find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  answering(ask);
});
find("others").addEventListener("click", () => { if (find("form").reportValidity()) answering(ask_others); });
find("example").addEventListener("click", () => { find("text").value = find("example").textContent; });
find("text").addEventListener("keydown", (event) => {
  if (event.key == "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit(find("ask"));
});
</script>
</body>
</html>
"""


_BLANKS = "Write a text. Where words are missing write ___, and the model fills them in."
_ANSWERS = "Write a text; the model answers it."


# Words of each blank, and drawn answers, that the page asks for.
_CANDIDATES, _OTHERS = 4, 4


def html(
    name: str,
    has_blanks: bool,
    needs_token: bool,
    example: str = "",
    has_candidates: bool = False,
    draws: bool = False,
) -> str:
    """The page of a model, with a field for the token if the server asks for one.

    Args:
      example: a text that a click writes into the field.
      has_candidates: whether the server gives the likeliest words of blanks.
      draws: whether it draws answers at a temperature.
    """
    values = {
        "EXAMPLE_HIDDEN": "" if example else "hidden",
        "OTHERS_HIDDEN": "" if draws else "hidden",
        "HIDDEN": "" if needs_token else "hidden",
        "EXAMPLE": html_text.escape(example),
        "CANDIDATES": str(_CANDIDATES if has_candidates else 0),
        "OTHERS": str(_OTHERS),
        "TASK": _BLANKS if has_blanks else _ANSWERS,
        "NAME": html_text.escape(name),
    }
    # In one pass: the example may have one of these words.
    return re.sub(rf"\b({'|'.join(values)})\b", lambda match: values[match[0]], _PAGE)
