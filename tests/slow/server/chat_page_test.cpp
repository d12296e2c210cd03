// The chat page in a browser, against servers in this process.
#include "golden/server/scripted_model.h"
#include "slow/browser.h"

namespace megatron::testing {
namespace {

constexpr const char* kLastText =
    "[...document.querySelectorAll('.message.model .text')].at(-1).textContent";
constexpr const char* kLastError =
    "[...document.querySelectorAll('.message.model')].at(-1).querySelector('.error').textContent";
constexpr const char* kIdle = "document.getElementById('stop').hidden";
const std::vector<Screen> kScreens = {{1200, 800, false}, {390, 800, true}, {320, 560, false}};

class ChatPage : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string program = browser_program();
    if (program.empty())
      GTEST_SKIP() << "there is no chromium on this machine (Debian's package chromium)";
    browser_ = std::make_unique<Browser>(program);
    browser_->set_screen({});
  }
  Browser& page() { return *browser_; }

  // Starts a server whose model gives `answer` to a chat's first message and generates nothing
  // else.
  void serve(const std::string& message, const std::string& answer,
             server::ServerOptions options = served_options(kScriptedPositions)) {
    served_ = std::make_unique<ServedModel>(options, kChatTemplate, scripted_shape());
    write_script(served_->model.model, script(("u:" + message + "\na:").size(), answer));
  }
  // Starts a server whose texts do not end for a long time.
  void serve_endless() {
    constexpr int64_t kPositions = 1 << 16;
    server::ServerOptions options = served_options(kPositions);
    options.engine.cache_bytes = 1 << 24;
    served_ = std::make_unique<ServedModel>(options);
  }
  void open() {
    page().open(fmt::format("http://127.0.0.1:{}/", served_->server->port()));
    page().wait_until("document.getElementById('model').textContent === 'tiny'");
    fill("temperature", "0");
  }
  void fill(const std::string& id, const std::string& text) {
    page().value(
        fmt::format("document.getElementById('{}').value = {}", id, Json(text).dump(-1, true)));
  }
  void click(const std::string& id) {
    page().value(fmt::format("document.getElementById('{}').click()", id));
  }
  void send(const std::string& text) {
    fill("input", text);
    click("send");
  }
  void say(const std::string& text) {
    send(text);
    page().wait_until(kIdle);
  }
  // Expects that nothing is cut off or needs horizontal scrolling.
  void expect_within_width() {
    const std::string beyond = page().text(R"JS((() => {
      const beyond = [];
      for (const box of [document.documentElement, document.getElementById('messages')])
        if (box.scrollWidth > box.clientWidth) beyond.push('scrolls: ' + box.tagName);
      for (const e of document.querySelectorAll('body *')) {
        const r = e.getBoundingClientRect();
        if (r.width > 0 && (r.left < -0.5 || r.right > innerWidth + 0.5))
          beyond.push(`${e.tagName} ${r.left} to ${r.right}`);
      }
      return beyond.join('; ');
    })())JS");
    EXPECT_EQ(beyond, "");
  }
  void expect_no_complaint() {
    for (const Json& complaint : page().complaints()) ADD_FAILURE() << complaint.dump();
  }

  std::unique_ptr<ServedModel> served_;

 private:
  std::unique_ptr<Browser> browser_;
};

TEST_F(ChatPage, LoadsFromTheServerAlone) {
  serve("x", "y");
  for (const Screen& screen : kScreens) {
    page().set_screen(screen);
    open();
    expect_within_width();
    EXPECT_EQ(page().text("getComputedStyle(document.getElementById('messages'), '::before')"
                          ".content.slice(1, 6)"),
              "Write");
    page().value("document.querySelector('details').open = true");
    expect_within_width();
  }
  EXPECT_GE(page().requests().size(), 2 * kScreens.size());
  const std::string own = fmt::format("http://127.0.0.1:{}/", served_->server->port());
  for (const Json& request : page().requests())
    EXPECT_TRUE(request["url"].as_string().starts_with(own) ||
                request["url"].as_string().starts_with("data:"))
        << request.dump();
  expect_no_complaint();
}

TEST_F(ChatPage, ShowsTheAnswerAndItsProbabilities) {
  serve("Hello", "Hi <b>there</b>");
  open();
  page().value("document.getElementById('input').focus()");
  page().type("Hello");
  page().press_enter();
  page().wait_until(std::string(kLastText) + " === 'Hi <b>there</b>' && " + kIdle);
  EXPECT_EQ(page().text("document.querySelector('.message.user .text').textContent"), "Hello");
  EXPECT_EQ(page().text("document.getElementById('input').value"), "");
  EXPECT_EQ(page().value("document.querySelectorAll('b').length"), Json(0));
  EXPECT_EQ(page().value("document.querySelectorAll('.token').length"), Json(15));  // bytes

  const Json token = served_
                         ->get("/v1/chat/completions", R"({"temperature": 0, "logprobs": true,
      "top_logprobs": 3, "messages": [{"role": "user", "content": "Hello"}]})")["choices"]
                         .as_array()[0]["logprobs"]["content"]
                         .as_array()[0];
  const Json place = page().value(
      "(() => { const r = document.querySelector('.token').getBoundingClientRect();"
      " return [r.left + r.width / 2, r.top + r.height / 2]; })()");
  EXPECT_TRUE(page().is("document.getElementById('about').hidden"));
  page().point_at(place.as_array()[0].as_number(), place.as_array()[1].as_number());
  page().wait_until("!document.getElementById('about').hidden");
  const std::string about = page().text("document.getElementById('about').textContent");
  EXPECT_NE(about.find("\"H\""), about.npos) << about;
  for (const Json& one : token["top_logprobs"].as_array()) {
    const std::string number = fmt::format("{:.3f}", one["logprob"].as_number());
    EXPECT_NE(about.find(number), about.npos) << number << " is not in\n" << about;
  }
  expect_within_width();
  page().point_at(1, 1);
  page().wait_until("document.getElementById('about').hidden");
  expect_no_complaint();
}

// Every kind of markup: each token keeps its probability, and no other HTML appears.
TEST_F(ChatPage, ShowsMarkdown) {
  const std::string answer =
      "# Top\n- a **b** *c*\n  1. d `e*f*`\n\n|g|h|\n|-|-:|\n|i|j|\n\n> k\n\n```sh\nl "
      "<b>m</b>\n```\n"
      "[n](https://o.p) [q](javascript:r) <img src=x onerror=s()>\n\n***\nt ~~u~~";
  serve("md", answer);
  open();
  say("md");
  const auto shown = [&] {
    return page().text(
        "document.querySelector('.message.model .text').innerHTML"
        ".replace(/<span class=\"token\">(.*?)<\\/span>/gs, '$1')"
        ".replace(/ (dir|class|title|target|rel|style)=\"[^\"]*\"/g, '')");
  };
  EXPECT_EQ(
      shown(),
      "<h2>Top</h2><ul><li><p>a <strong>b</strong> <em>c</em></p><ol start=\"1\"><li><p>d "
      "<code>e*f*</code></p></li></ol></li></ul><div><table><thead><tr><th>g</th><th>h</th>"
      "</tr></thead><tbody><tr><td>i</td><td>j</td></tr></tbody></table></div><blockquote><p>k"
      "</p></blockquote><pre data-language=\"sh\"><code>l &lt;b&gt;m&lt;/b&gt;\n</code></pre>"
      "<p><a href=\"https://o.p/\">n</a> [q](javascript:r) &lt;img src=x onerror=s()&gt;</p>"
      "<hr><p>t <del>u</del></p>");
  EXPECT_EQ(page().text("getComputedStyle(document.querySelector('td + td')).textAlign"), "right");
  EXPECT_EQ(page().value("[...document.querySelectorAll('pre .token')].length"),
            Json(int64_t{std::ssize(std::string("l <b>m</b>\n"))}));
  const std::string all = shown();
  for (const Screen& screen : kScreens) {
    page().set_screen(screen);
    expect_within_width();
  }
  click("plain");
  EXPECT_EQ(page().text(kLastText), answer);
  click("plain");
  EXPECT_EQ(shown(), all);
  expect_no_complaint();
}

// A part of the text is shown as it is in the whole, however the stream is cut.
TEST_F(ChatPage, MarkdownDoesNotDependOnHowItComes) {
  serve("x", "y");
  open();
  EXPECT_EQ(page().text(R"JS((() => {
    const sources = ["a | b\n--|--\n1 | 2\n\n- c\n  ```\n  d\n  ```\n- e\nf\n\n> g\n> > h\ni",
      "**a *b*** `c` [d](https://e) <https://f>\n***\n1. g\n\n   h\n10) i\n# j\nk  \nl\*"];
    const draw = (source, step) => {
      const answer = new Answer(document.createElement("div"));
      answer.box.replaceChildren();
      for (let at = 0; at < source.length; at += step) {
        answer.add(source.slice(at, at + step), []);
        answer.draw();
      }
      return answer.box.innerHTML.replace(/<\/?span[^>]*>/g, "");
    };
    const different = sources.filter((source) => draw(source, 1) !== draw(source, 1000));
    return different.join("; ");
  })())JS"),
            "");
}

TEST_F(ChatPage, RightToLeftTextBeginsOnTheRight) {
  const std::string message = "שלום עולם", answer = "مرحبا بالعالم";
  serve(message, answer);
  open();
  say(message);
  EXPECT_EQ(page().text(kLastText), answer);
  const auto gaps = [&](const std::string& who) {  // between the text and its box, on both sides
    return page().value(fmt::format(R"JS((() => {{
      const box = document.querySelector('.message.{} .text'), range = document.createRange();
      range.setStart(box.querySelector('.token') ?? box, 0);
      range.setEnd([...box.querySelectorAll('.token')].at(-1) ?? box, 1);
      const outer = box.getBoundingClientRect(), text = range.getBoundingClientRect();
      return [text.left - outer.left, outer.right - text.right];
    }})())JS",
                                    who));
  };
  for (const char* who : {"user", "model"}) {
    const Json found = gaps(who);
    EXPECT_GT(found.as_array()[0].as_number(), 200) << who;
    EXPECT_LT(found.as_array()[1].as_number(), 20) << who;
  }
  fill("input", message);
  EXPECT_EQ(page().text("getComputedStyle(document.getElementById('input')).direction"), "rtl");
  fill("input", "left");
  EXPECT_EQ(page().text("getComputedStyle(document.getElementById('input')).direction"), "ltr");
  expect_within_width();
  expect_no_complaint();
}

TEST_F(ChatPage, LongTextKeepsWithinTheWidth) {
  const std::string message(40, 'W'), answer(200, 'W');
  serve(message, answer);
  open();
  say(message);
  EXPECT_EQ(page().text(kLastText), answer);
  expect_no_complaint();
  say(std::string(20000, 'W'));  // too long for the model
  for (const Screen& screen : kScreens) {
    page().set_screen(screen);
    expect_within_width();
  }
}

TEST_F(ChatPage, ShowsErrorsAndGoesOn) {
  server::ServerOptions options = served_options(kScriptedPositions);
  options.service.keys = server::ApiKeys({"right"});
  serve("short", "fine", options);
  page().open(fmt::format("http://127.0.0.1:{}/", served_->server->port()));
  say("short");
  EXPECT_NE(page().text(kLastError).find("API key"), std::string::npos) << page().text(kLastError);
  fill("key", "right");
  const std::string too_long(1000, 'x');
  say(too_long);
  EXPECT_NE(page().text(kLastError).find("has 1005"), std::string::npos) << page().text(kLastError);
  EXPECT_EQ(page().text("document.getElementById('input').value"), too_long);
  say("short");  // still the chat's first message
  EXPECT_EQ(page().text(kLastText), "fine");
  served_.reset();
  say("more");
  EXPECT_EQ(page().text(kLastError), "The server cannot be reached.");
  expect_within_width();
}

TEST_F(ChatPage, StopsAndBeginsAnew) {
  serve_endless();
  open();
  send("x");
  const std::string length = std::string(kLastText) + ".length";
  page().wait_until(length + " > 10");
  EXPECT_FALSE(page().is(kIdle));
  const int64_t before = page().value(length).as_integer();
  page().wait_until(fmt::format("{} > {}", length, before));
  click("stop");
  page().wait_until(kIdle);
  const int64_t stopped = page().value(length).as_integer();
  EXPECT_GT(stopped, before);
  EXPECT_EQ(page().text("document.querySelector('.note')?.textContent ?? ''"), "Stopped.");
  for (int i = 0; i < 100 * kHangSeconds && served_->server->counts().running > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(served_->server->counts().running, 0);
  EXPECT_EQ(page().value(length).as_integer(), stopped);

  const auto sent_messages = [&] {
    std::vector<std::string> all;
    const Json body = Json::parse(page().requests().back()["postData"].as_string());
    for (const Json& m : body["messages"].as_array()) all.push_back(m["role"].as_string());
    return all;
  };
  using Roles = std::vector<std::string>;
  send("y");
  page().wait_until(length + " > 10");
  EXPECT_EQ(sent_messages(), (Roles{"user", "assistant", "user"}));
  click("anew");  // while it answers
  page().wait_until(kIdle);
  EXPECT_EQ(page().value("document.querySelectorAll('.message').length"), Json(0));
  send("z");
  page().wait_until(length + " > 10");
  EXPECT_EQ(sent_messages(), Roles{"user"});
  click("stop");
  page().wait_until(kIdle);
  expect_no_complaint();
}

TEST_F(ChatPage, IsDarkWhereTheSystemIsOrOneAsks) {
  serve("x", "y");
  const auto back = [&] { return page().text("getComputedStyle(document.body).backgroundColor"); };
  open();
  const std::string light = back();
  page().set_screen({.dark = true});
  const std::string dark = back();
  EXPECT_NE(light, dark);
  click("theme");
  EXPECT_EQ(back(), light);
  page().set_screen({});
  click("theme");
  EXPECT_EQ(back(), dark);
}

}  // namespace
}  // namespace megatron::testing
