"""The page at `/`, for somebody who never saw a command line: a text, a button, the answer. It loads nothing else."""

import html as html_text

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
body { font: 17px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem; }
textarea, input { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; }
button { font: inherit; margin: .8rem 0; padding: .4rem 1.6rem; }
#answer { white-space: pre-wrap; overflow-wrap: anywhere; min-height: 1.5em; }
#answer { border-left: 4px solid #999; padding: .2rem .8rem; }
#answer.error { border-color: #b00; }
</style>
</head>
<body>
<h1>NAME</h1>
<form id="form">
<p><label for="text">TASK</label></p>
<p><textarea id="text" rows="4" dir="auto" required autofocus></textarea></p>
<p id="of_token" HIDDEN><label for="token">The server's token</label>
<input id="token" type="password" autocomplete="off"></p>
<button id="ask">Ask</button>
</form>
<p id="answer" dir="auto" aria-live="polite"></p>
<script>
const find = (id) => document.getElementById(id);
const ask = async () => {
  const token = find("token").value;
  if (/[^!-~]/.test(token)) throw new Error("A token has letters, digits and signs of ASCII, and no blanks.");
  const headers = {"Content-Type": "application/json"};
  if (token) headers.Authorization = "Bearer " + token;
  const body = JSON.stringify({prompt: find("text").value});
  const reply = await fetch("/v1/completions", {method: "POST", headers, body})
    .catch((error) => { throw new Error(`The server does not answer; does it still run? (${error.message})`); });
  if (reply.status == 401) throw new Error(token ? "This token is wrong." : "Write the server's token.");
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error.message);
  const {text, finish_reason, hint} = found.choices[0];
  const cut = finish_reason == "length" ? " … (cut: answers are no longer here)" : "";
  return (text || "(an empty answer)") + cut + (hint ? "\\n(" + hint + ")" : "");
};
find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = find("answer");
  const focused = document.activeElement;
  answer.className = "";
  answer.textContent = "…";
  find("ask").disabled = true;
  try {
    answer.textContent = await ask();
  } catch (error) {
    answer.className = "error";
    answer.textContent = error.message;
  }
  find("ask").disabled = false;
  focused.focus();
});
find("text").addEventListener("keydown", (event) => {
  if (event.key == "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit(find("ask"));
});
</script>
</body>
</html>
"""


_BLANKS = "Write a text. Where words are missing write ___, and the model fills them in."
_ANSWERS = "Write a text; the model answers it."


def html(name: str, has_blanks: bool, needs_token: bool) -> str:
    """The page of a model, with a field for the token if the server asks for one."""
    page = _PAGE.replace("HIDDEN", "" if needs_token else "hidden")
    return page.replace("TASK", _BLANKS if has_blanks else _ANSWERS).replace("NAME", html_text.escape(name))
