// A headless Chromium, driven by the DevTools protocol over a pair of pipes, with zero-terminated
// JSON messages.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "hang_limit.h"

namespace megatron::testing {

// Name of an installed Chromium; empty if there is none.
inline std::string browser_program() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    const std::string found = fmt::format("command -v {} >/dev/null 2>&1", name);
    if (std::system(found.c_str()) == 0) return name;
  }
  return "";
}

struct Screen {
  int64_t width = 1200, height = 800;
  bool dark = false;  // the system's preference
};

// One page. Every call throws Error if the browser does not answer or refuses.
class Browser {
 public:
  explicit Browser(const std::string& program) {
    std::string pattern = (std::filesystem::temp_directory_path() / "megatron-XXXXXX").string();
    profile_ = mkdtemp(pattern.data());
    start(program);
    const Json targets = call("Target.getTargets");
    for (const Json& target : targets["targetInfos"].as_array()) {
      if (target["type"].as_string() != "page") continue;
      const Json attached =
          call("Target.attachToTarget", {{"targetId", target["targetId"]}, {"flatten", true}});
      session_ = attached["sessionId"].as_string();
      break;
    }
    for (const char* domain : {"Page", "Runtime", "Log", "Network"})
      call(std::string(domain) + ".enable");
  }
  ~Browser() {
    close(to_);
    close(from_);
    int status = 0;
    waitpid(child_, &status, 0);  // it ends when its pipe closes
    std::error_code ignored;
    std::filesystem::remove_all(profile_, ignored);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  void set_screen(const Screen& screen) {
    call("Emulation.setDeviceMetricsOverride", {{"width", screen.width},
                                                {"height", screen.height},
                                                {"deviceScaleFactor", 1},
                                                {"mobile", screen.width < 600}});
    Json::Array features;
    features.push_back(
        Json::Object{{"name", "prefers-color-scheme"}, {"value", screen.dark ? "dark" : "light"}});
    call("Emulation.setEmulatedMedia", {{"features", std::move(features)}});
  }
  void open(const std::string& url) {
    call("Page.navigate", {{"url", url}});
    wait_until("location.href !== 'about:blank' && document.readyState === 'complete'");
  }

  // Returns the value of a JavaScript expression, awaiting a promise.
  Json value(const std::string& expression) {
    const Json answer =
        call("Runtime.evaluate",
             {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
    MG_CHECK(!answer.contains("exceptionDetails"), "{}: {}", expression, answer.dump());
    const Json* found = answer["result"].find("value");
    return found ? *found : Json();
  }
  std::string text(const std::string& expression) { return value(expression).as_string(); }
  bool is(const std::string& expression) { return value(expression) == Json(true); }
  void wait_until(const std::string& expression) {
    for (int i = 0; i < 50 * kHangSeconds; ++i) {
      if (is(expression)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw Error("never: " + expression);
  }

  void point_at(double x, double y) {
    call("Input.dispatchMouseEvent", {{"type", "mouseMoved"}, {"x", x}, {"y", y}});
  }
  void press_enter() {
    for (const char* type : {"keyDown", "keyUp"})
      call("Input.dispatchKeyEvent", {{"type", type},
                                      {"key", "Enter"},
                                      {"code", "Enter"},
                                      {"text", "\r"},
                                      {"windowsVirtualKeyCode", 13}});
  }
  void type(const std::string& text) { call("Input.insertText", {{"text", text}}); }

  // Requests and complaints of the page or the browser since the page was opened.
  const std::vector<Json>& requests() const { return requests_; }
  const std::vector<Json>& complaints() const { return complaints_; }

 private:
  void start(const std::string& program) {
    std::array<int, 2> there{}, back{};
    MG_CHECK(pipe2(there.data(), O_CLOEXEC) == 0 && pipe2(back.data(), O_CLOEXEC) == 0,
             "cannot make a pipe");
    const std::string profile = "--user-data-dir=" + profile_;
    std::vector<const char*> words = {program.c_str(), "--headless",     "--no-sandbox",
                                      "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
                                      profile.c_str(), "about:blank",    nullptr};
    child_ = fork();
    MG_CHECK(child_ >= 0, "cannot fork");
    if (child_ == 0) {
      // Chromium reads from descriptor 3 and writes to 4. The pipes are moved above these first,
      // since they may have the same numbers.
      const int in = fcntl(there[0], F_DUPFD, 10), out = fcntl(back[1], F_DUPFD, 10);
      const int quiet = ::open("/dev/null", O_WRONLY);
      dup2(quiet, 1);
      dup2(quiet, 2);
      dup2(in, 3);
      dup2(out, 4);
      close(in);
      close(out);
      execvp(words[0], const_cast<char* const*>(words.data()));
      _exit(127);
    }
    close(there[0]);
    close(back[1]);
    to_ = there[1];
    from_ = back[0];
  }

  Json call(const std::string& method, Json::Object parameters = {}) {
    const int64_t id = ++calls_;
    Json::Object message = {{"id", id}, {"method", method}, {"params", std::move(parameters)}};
    if (!session_.empty()) message.emplace_back("sessionId", session_);
    const std::string text = Json(std::move(message)).dump() + '\0';
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = write(to_, text.data() + sent, text.size() - sent);
      MG_CHECK(n > 0, "the browser does not read {}", method);
      sent += static_cast<size_t>(n);
    }
    for (;;) {
      Json answer = next_message();
      const Json* answered = answer.find("id");
      if (answered == nullptr) {
        note_event(answer);
      } else if (*answered == Json(id)) {
        MG_CHECK(!answer.contains("error"), "{}: {}", method, answer.dump());
        return answer["result"];
      }
    }
  }

  Json next_message() {
    for (;;) {
      const size_t end = received_.find('\0');
      if (end != received_.npos) {
        Json message = Json::parse(received_.substr(0, end));
        received_.erase(0, end + 1);
        return message;
      }
      pollfd ready{.fd = from_, .events = POLLIN, .revents = 0};
      std::array<char, 65536> bytes{};
      const bool comes = poll(&ready, 1, 1000 * kHangSeconds) > 0;
      const ssize_t n = comes ? read(from_, bytes.data(), bytes.size()) : 0;
      MG_CHECK(n > 0, "the browser has ended, or does not answer");
      received_.append(bytes.data(), static_cast<size_t>(n));
    }
  }

  void note_event(const Json& event) {
    const std::string& method = event["method"].as_string();
    if (method == "Network.requestWillBeSent") requests_.push_back(event["params"]["request"]);
    if (method == "Runtime.exceptionThrown" || method == "Log.entryAdded" ||
        method == "Runtime.consoleAPICalled")
      complaints_.push_back(event["params"]);
  }

  std::string profile_, session_, received_;
  pid_t child_ = -1;
  int to_ = -1, from_ = -1;
  int64_t calls_ = 0;
  std::vector<Json> requests_, complaints_;
};

}  // namespace megatron::testing
