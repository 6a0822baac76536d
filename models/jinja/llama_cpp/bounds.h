// What limits.patch calls from inside of llama.cpp's template code: the bounds of one parse or one render,
// and how Python spells floats and quotes strings. Defined in llama_template.cc.
//
// One thread a parse or render; what is counted is that thread's. A call that passes a bound throws Exceeded,
// and so does every later one of the same parse or render, so that a handler in between hides nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace jinja {

struct value_t;
struct func_args;

namespace bounds {

// Not a std::exception: the library's handlers let it pass.
struct Exceeded {
  std::string sentence;
};

// `count` nodes visited, values made or characters looked at.
void Step(size_t count = 1);
// `bytes` are copied: costs steps.
void Copy(size_t bytes);
// One value grows to `count` pieces of `bytes` each. Negative counts are none.
void Room(int64_t count, size_t bytes);

// Depth of the recursion that holds it.
class Deeper {
 public:
  Deeper() { More(); }
  ~Deeper();
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  void More();  // one more, until this object ends

 private:
  int levels_ = 0;
};

// What a value holds of others, taken out of it so that they do not end inside of its end.
struct Remains {
  std::vector<std::shared_ptr<value_t>> values;
  std::vector<std::function<std::shared_ptr<value_t>(const func_args&)>> functions;
};

// Base of every value: it is counted, and can be found at the end of the render, where values that hold each
// other would stay.
class Tracked {
 public:
  Tracked();
  Tracked(const Tracked&);
  Tracked& operator=(const Tracked&) { return *this; }
  virtual ~Tracked();

  // Counts what it holds beside itself, once: as memory, and as copied.
  void Hold();

  virtual size_t HeldBytes() const = 0;
  virtual void Release(Remains& remains) = 0;

 private:
  friend class Account;
  void Enter();

  Tracked* previous_ = nullptr;
  Tracked* next_ = nullptr;
  size_t held_ = 0;
};

// Ends `remains` one by one: what they hold in turn joins the line.
void Bury(Remains& remains) noexcept;

// Of UTF-8 text: its code points. What is not UTF-8 counts byte by byte.
size_t CodePoints(const std::string& text);
std::vector<std::string> SplitCodePoints(const std::string& text);

std::string FloatText(double value);
std::string Quoted(const std::string& text);  // repr(str)

}  // namespace bounds
}  // namespace jinja
