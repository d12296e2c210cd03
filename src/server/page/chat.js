const $ = (id) => document.getElementById(id);
let model = null, messages = [], running = null;
let answers = [];  // an Answer for each text of the model that is shown

function headers() {
  const all = {"Content-Type": "application/json"};
  if ($("key").value) all.Authorization = "Bearer " + $("key").value;
  return all;
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "status " + response.status;
  }
}

async function ask(path, options) {
  const response = await fetch(path, {headers: headers(), ...options}).catch((error) => {
    throw options.signal?.aborted ? error : new Error("The server cannot be reached.");
  });
  if (!response.ok) throw new Error(await failure(response));
  return response;
}

async function loadModel() {
  if (model) return;
  const response = await ask("v1/models", {});
  model = (await response.json()).data[0];
  $("model").textContent = model.id;
  if (!model.chat)
    $("input").placeholder = "Text to continue (this model has no chat template)";
}

function show(role, text) {
  const message = add($("messages"), "article", "message " + role);
  add(message, "div", "who", role === "user" ? "You" : "Model");
  const body = add(message, "div", "text", text);
  body.dir = "auto";
  scroll(true);
  return message;
}

let seenHeight = 0;  // of the messages, when they were last scrolled

// To the end, if that was in sight.
function scroll(always) {
  const box = $("messages");
  if (always || seenHeight - box.scrollTop - box.clientHeight < 150)
    box.scrollTop = box.scrollHeight;
  seenHeight = box.scrollHeight;
}

// Lets the browser draw and take input, which a fast stream would keep it from.
const nextFrame = () => new Promise(
  (resolve) => document.hidden ? resolve() : requestAnimationFrame(resolve));

const probability =
  (logprob) => `${logprob.toFixed(3)} (${(100 * Math.exp(logprob)).toPrecision(3)} %)`;

// With the token isolated, so that a right-to-left one does not reorder the numbers.
const describeOne =
  (token) => `\u2068${JSON.stringify(token.token)}\u2069  ${probability(token.logprob)}`;

function describe(token) {
  const lines = [describeOne(token)];
  for (const other of token.top_logprobs || [])
    if (other.token !== token.token) lines.push("   or " + describeOne(other));
  return lines.join("\n");
}

const tokensOfSpans = new WeakMap();  // of class "token"

// A text of the model as it grows: its source, and what is shown of it.
class Answer {
  constructor(box) {
    this.box = box;
    this.source = "";
    this.pieces = [];  // {to, tokens}: the source up to an offset, from the piece before on
    answers.push(this);
    this.drawAnew();
  }

  // A part of the text with the tokens that came with it: one piece a token, as far as they are the
  // text (parts of a character are not), and one for the rest. A token that only ends the text has
  // none.
  add(text, tokens) {
    const end = this.source.length + text.length;
    let next = 0, to = this.source.length;
    this.source += text;
    for (; next < tokens.length && this.source.startsWith(tokens[next].token, to); ++next) {
      to += tokens[next].token.length;
      this.pieces.push({to, tokens: [tokens[next]]});
    }
    if (to < end) this.pieces.push({to: end, tokens: tokens.slice(next)});
  }

  drawAnew() {
    this.box.replaceChildren();
    this.fixed = {at: 0, nodes: 0};  // the source, and nodes of the box, that stay as they are
    this.markdown = model?.chat && !$("plain").checked;
    this.box.classList.toggle("markdown", Boolean(this.markdown));
    this.draw();
  }

  // Shows what was added.
  draw() {
    const write = (parent, from, to) => this.write(parent, from, to);
    while (this.box.childNodes.length > this.fixed.nodes) this.box.lastChild.remove();
    if (this.markdown) {
      this.fixed = new Markdown(this.source, write).render(this.box, this.fixed.at);
    } else {
      this.write(this.box, this.fixed.at, this.source.length);
      this.fixed = {at: this.source.length, nodes: this.box.childNodes.length};
    }
  }

  // Appends a stretch of the source, a span for each piece that it has a part of.
  write(parent, from, to) {
    let low = 0, high = this.pieces.length;  // the first that ends behind `from`
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pieces[middle].to > from) high = middle;
      else low = middle + 1;
    }
    for (; from < to; from = this.pieces[low++].to) {
      const {to: end, tokens} = this.pieces[low];
      const text = this.source.slice(from, Math.min(end, to));
      const span = add(parent, "span", tokens.length ? "token" : "", text);
      if (tokens.length) tokensOfSpans.set(span, tokens);
    }
  }
}

// Describes the token that is pointed at, below it or, where there is no room, above.
function point(event) {
  const tokens = tokensOfSpans.get(event.target), about = $("about");
  about.hidden = !tokens;
  if (!tokens) return;
  about.textContent = tokens.map(describe).join("\n");
  const token = event.target.getClientRects()[0], box = about.getBoundingClientRect();
  const below = token.bottom + 4, fits = below + box.height <= innerHeight;
  about.style.top = (fits ? below : Math.max(0, token.top - 4 - box.height)) + "px";
  about.style.left = Math.max(8, Math.min(token.left, innerWidth - 8 - box.width)) + "px";
}

function tokensOf(choice) {
  if (!choice.logprobs) return [];
  if (choice.logprobs.content) return choice.logprobs.content;
  const l = choice.logprobs;
  return l.tokens.map((token, i) => ({token, logprob: l.token_logprobs[i] ?? 0,
    top_logprobs: Object.entries(l.top_logprobs[i] || {})
      .map(([token, logprob]) => ({token, logprob}))}));
}

function request(text) {
  const body = {model: model.id, stream: true, temperature: Number($("temperature").value)};
  body.top_p = Number($("top_p").value) || 1;
  if ($("max_tokens").value) body.max_tokens = Number($("max_tokens").value);
  if ($("seed").value) body.seed = Number($("seed").value);
  if (!model.chat) {
    if (!body.max_tokens) body.max_tokens = Math.min(128, Math.floor(model.max_model_len / 2));
    const prompt = messages.map((message) => message.content).join("");
    return ["v1/completions", {...body, prompt, logprobs: 5}];
  }
  const system = $("system").value ? [{role: "system", content: $("system").value}] : [];
  return ["v1/chat/completions",
    {...body, messages: [...system, ...messages], logprobs: true, top_logprobs: 5}];
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  while (true) {
    const {value, done} = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = Boolean(controller);
}

// Why there is less text than one might expect.
function noteOf(stopped, reason, empty) {
  if (stopped) return "Stopped.";
  if (reason === "length") return "Cut off: the limit of tokens is reached.";
  return empty ? "An empty answer." : "";
}

// The reasoning before an answer.
function showThought(message) {
  const details = document.createElement("details");
  details.open = true;
  add(details, "summary", "", "Reasoning");
  message.insertBefore(details, message.querySelector(".text"));
  const box = add(details, "div", "thought");
  box.dir = "auto";
  return new Answer(box);
}

// Answers a chat whose last message is the user's. If that fails, the message goes back into the
// input.
async function answer(chat) {
  const message = show("model", "");
  let thought = null, said = null, reason = null, failed = false, next = 0;
  setRunning(new AbortController());
  message.classList.add("waiting");
  const {signal} = running;
  try {
    await loadModel();
    said = new Answer(message.querySelector(".text"));
    const [path, content] = request();
    const response = await ask(path, {method: "POST", body: JSON.stringify(content), signal});
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      for (const choice of event.choices) {
        reason = choice.finish_reason ?? reason;
        const delta = choice.delta || {content: choice.text};
        if (delta.reasoning_content) {
          thought ??= showThought(message);
          thought.add(delta.reasoning_content, tokensOf(choice));
        }
        said.add(delta.content || "", tokensOf(choice));
      }
      const begin = performance.now();
      if (begin < next) continue;
      thought?.draw();
      said.draw();
      await nextFrame();
      scroll(false);
      const now = performance.now();
      next = now + Math.max(30, 2 * (now - begin));  // a long block takes its time
    }
  } catch (error) {
    failed = !signal.aborted;
    if (failed) add(message, "div", "error", error.message);
  }
  thought?.draw();
  said?.draw();
  setRunning(null);
  message.classList.remove("waiting");
  const note = failed ? "" : noteOf(signal.aborted, reason, !said?.source && !thought);
  if (note) add(message, "div", "note", note);
  scroll(false);
  if (said?.source) chat.push({role: "assistant", content: said.source});
  else takeBack(chat);
}

function takeBack(chat) {
  const last = chat.pop();
  if (chat === messages && !$("input").value) $("input").value = last.content;
}

$("settings").addEventListener("submit", (event) => event.preventDefault());
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value;
  if (!text.trim() || running) return;
  $("input").value = "";
  messages.push({role: "user", content: text});
  show("user", text);
  answer(messages);
});
$("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("plain").addEventListener("change", () => answers.forEach((answer) => answer.drawAnew()));
$("stop").addEventListener("click", () => running?.abort());
$("anew").addEventListener("click", () => {
  running?.abort();
  messages = [];
  answers = [];
  $("messages").replaceChildren();
  $("input").focus();
});
const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ??
  (systemTheme.matches ? "dark" : "light")) === "dark";
const labelTheme = () => { $("theme").textContent = isDark() ? "Light" : "Dark"; };
$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  labelTheme();
});
systemTheme.addEventListener("change", labelTheme);
for (const type of ["pointerover", "click"]) $("messages").addEventListener(type, point);
for (const type of ["scroll", "pointerleave"])
  $("messages").addEventListener(type, () => { $("about").hidden = true; });
labelTheme();
loadModel().catch(() => {});
