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
#answer { white-space: pre-wrap; border-left: 4px solid #999; padding: .2rem .8rem; min-height: 1.5em; }
#answer.error { border-color: #b00; }
</style>
</head>
<body>
<h1>NAME</h1>
<form id="form">
<p><label for="text">Write a text. Where words are missing write ___, and the model fills them in.</label></p>
<p><textarea id="text" rows="4" dir="auto" required autofocus></textarea></p>
<p id="of_token" HIDDEN><label for="token">The server's token</label>
<input id="token" type="password" autocomplete="off"></p>
<button id="ask">Ask</button>
</form>
<p id="answer" dir="auto" aria-live="polite"></p>
<script>
const find = (id) => document.getElementById(id);
find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = find("answer");
  answer.className = "";
  answer.textContent = "…";
  find("ask").disabled = true;
  const headers = {"Content-Type": "application/json"};
  if (find("token").value) headers.Authorization = "Bearer " + find("token").value;
  try {
    const body = JSON.stringify({prompt: find("text").value});
    const reply = await fetch("/v1/completions", {method: "POST", headers, body});
    const found = await reply.json();
    if (!reply.ok) throw new Error(found.error.message);
    answer.textContent = found.choices[0].text || "(an empty answer)";
  } catch (error) {
    answer.className = "error";
    answer.textContent = error.message;
  }
  find("ask").disabled = false;
});
</script>
</body>
</html>
"""


def html(name: str, needs_token: bool) -> str:
    """The page of a model, with a field for the token if the server asks for one."""
    return _PAGE.replace("HIDDEN", "" if needs_token else "hidden").replace("NAME", html_text.escape(name))
