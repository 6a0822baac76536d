// JinjaTemplate: what it renders, what it refuses and where, and that no text or value takes more stack,
// memory or time than its bounds. What jinja2 makes of the same templates: jinja_oracle.py.
#include "models/jinja/jinja_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tramontane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::tm Noon() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 14;
  now.tm_hour = 12;
  return now;
}

class JinjaTemplateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasJinja()) GTEST_SKIP() << "this build has no Jinja templates (TRAMONTANE_JINJA)";
  }

  static StatusOr<std::string> Render(std::string_view text, const std::string& values = "{}",
                                      const JinjaLimits& limits = {}) {
    TM_ASSIGN_OR_RETURN(const auto parsed, JinjaTemplate::Parse(text, limits));
    const StatusOr<JsonValue> json = ParsePythonJson(values);
    EXPECT_TRUE(json.ok()) << json.status();
    return parsed->Render(*json, Noon());
  }
  static std::string Text(std::string_view text, const std::string& values = "{}") {
    const StatusOr<std::string> output = Render(text, values);
    EXPECT_TRUE(output.ok()) << text << ": " << output.status();
    return output.ok() ? *output : "";
  }
  // The sentence with which `text` is refused.
  static std::string Refusal(std::string_view text, const JinjaLimits& limits = {}) {
    const StatusOr<std::string> output = Render(text, "{}", limits);
    EXPECT_FALSE(output.ok()) << text.substr(0, 100) << ": rendered " << output->substr(0, 100);
    EXPECT_EQ(output.status().code(), StatusCode::kInvalidArgument);
    return output.ok() ? "" : output.status().message();
  }
};

std::string Repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(AbsentJinjaTest, ABuildWithoutTheLibrarySaysSo) {
  if (HasJinja()) GTEST_SKIP() << "this build has Jinja templates";
  const auto parsed = JinjaTemplate::Parse("x");
  EXPECT_EQ(parsed.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(parsed.status().message(), HasSubstr("TRAMONTANE_JINJA=ON"));
}

TEST_F(JinjaTemplateTest, ValuesReachTheTemplate) {
  EXPECT_EQ(
      Text(
          "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}{{ n }}",
          R"({"messages": [{"role": "user", "content": "Grüße 😀"}, {"role": "tool", "content": ""}], "n": 3})"),
      "<user>Grüße 😀<tool>3");
}

TEST_F(JinjaTemplateTest, NumbersKeepTheirDigits) {
  EXPECT_EQ(Text("{{ x|tojson }} {{ x[0] }}",
                 R"({"x": [123456789012345678901234567890, 0.1234567891, 1e22, 9223372036854775807, 2.50]})"),
            "[123456789012345678901234567890, 0.1234567891, 1e+22, 9223372036854775807, 2.5] "
            "123456789012345678901234567890");
}

TEST_F(JinjaTemplateTest, TimeIsTheCallers) {
  EXPECT_EQ(Text("{{ strftime_now('%d %b %Y') }}"), "14 Jul 2025");
}

TEST_F(JinjaTemplateTest, LineEndsOfEveryKindAreOne) {
  EXPECT_EQ(Text("a\r\nb\rc\n{% if true %}\r\nd{% endif %}"), "a\nb\nc\nd");
}

TEST_F(JinjaTemplateTest, WhatTheTemplateRaisesIsTheMessage) {
  EXPECT_EQ(Refusal("a\n{{ raise_exception('Roles must alternate!') }}"), "Roles must alternate!");
}

TEST_F(JinjaTemplateTest, FaultsTellTheLine) {
  EXPECT_THAT(Refusal("a\nb\n{{ 1 + }}"), StartsWith("line 3: "));
  EXPECT_THAT(Refusal("a\n{% if x %}"), StartsWith("line 2: "));
  EXPECT_THAT(Refusal("a\n\n{{ x.y }}"), AllOf(StartsWith("line 3: "), HasSubstr("undefined")));
  EXPECT_THAT(Refusal("a\n{{ 'x' + 1 }}"), StartsWith("line 2: "));
  EXPECT_THAT(Refusal("a\n{{ 'x'|nonsense }}"), AllOf(StartsWith("line 2: "), HasSubstr("'nonsense'")));
  EXPECT_THAT(Refusal("{% nonsense %}"), AllOf(StartsWith("line 1: "), HasSubstr("nonsense")));
  EXPECT_THAT(Refusal("{{ 'x"), StartsWith("line 1: "));
}

// Of jinja2, but not here: refused by name, never rendered as something else.
TEST_F(JinjaTemplateTest, WhatIsNotThereIsRefused) {
  for (const char* const text :
       {"{{ 7 // 2 }}", "{{ 2 ** 3 }}", "{% raw %}x{% endraw %}", "{% include 'x' %}", "{{ 'abc'|list }}",
        "{{ [1]|sum }}", "{{ ['a']|unique }}", "{{ ['a']|map('upper')|list }}", "{{ 'a' < 'b' }}",
        "{{ {}|tojson(sort_keys=true) }}", "{{ '\\u00e9' }}"}) {
    Refusal(text);
  }
}

TEST_F(JinjaTemplateTest, ArithmeticIsNeverUndefined) {
  for (const char* const text :
       {"{{ 1 % 0 }}", "{{ 1 / 0 }}", "{{ 1 is divisibleby 0 }}", "{{ 9223372036854775807 + 1 }}",
        "{{ 9223372036854775807 * 2 }}", "{{ 99999999999999999999 }}"}) {
    Refusal(text);
  }
  EXPECT_EQ(Text("{{ range(9223372036854775806, 9223372036854775807, 2) }}"), "[9223372036854775806]");
  EXPECT_EQ(Text("{{ [1,2,3][::9223372036854775807] }} {{ 'abc'[::-9223372036854775807] }}"), "[1] c");
  EXPECT_EQ(Text("{{ (0 - 9223372036854775807 - 1) is divisibleby(0 - 1) }}"), "True");
}

TEST_F(JinjaTemplateTest, SortingByWhatHasNoOrderEnds) {
  std::string items;
  for (int i = 0; i < 200; ++i)
    items += (i % 3 == 0 ? "'" + std::to_string(i) + "'," : std::to_string(200 - i) + ",");
  EXPECT_EQ(Text("{{ [" + items + "]|sort|length }}"), "200");
}

TEST_F(JinjaTemplateTest, OneValueHasABound) {
  for (const char* const text :
       {"{{ 'x' * 1000000000000 }}", "{{ 9223372036854775807 * 'x' }}",
        "{{ 'a'.replace('a', 'b' * 10000000).replace('b', 'c' * 1000) }}",
        "{{ ['a'] * 3 if false else (['a', 'b']|join('x' * 16777215)) }}", "{{ 'a\nb'|indent(1000000000) }}",
        "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("more bytes than")) << text;
  }
}

TEST_F(JinjaTemplateTest, StepsHaveABound) {
  const JinjaLimits limits = {.max_steps = 200'000};
  for (const char* const text : {"{{ range(1000000000) }}",
                                 "{% for i in range(1000) %}{% for j in range(1000) %}{% for k in "
                                 "range(1000) %}{% endfor %}{% endfor %}{% endfor %}",
                                 // Twice as many values at each turn, all but one of them shared.
                                 "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = "
                                 "[ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
                                 "{% set ns = namespace(x=(1, 2)) %}{% for i in range(60) %}{% set ns.x = "
                                 "(ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
                                 "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x "
                                 "= [ns.x, ns.x] %}{% set ns.y = [ns.y, "
                                 "ns.y] %}{% endfor %}{{ ns.x == ns.y }}"}) {
    EXPECT_THAT(Refusal(text, limits), AnyOf(HasSubstr("more steps than"), HasSubstr("more bytes than")))
        << text;
  }
}

TEST_F(JinjaTemplateTest, MemoryHasABound) {
  const JinjaLimits limits = {.max_memory_bytes = 8 << 20};
  EXPECT_THAT(
      Refusal("{% set a = [] %}{% for i in range(500) %}{% set _ = a.append('x' * 100000 ~ i) %}{% endfor %}",
              limits),
      HasSubstr("its values have more bytes than"));
  EXPECT_THAT(Refusal("{{ range(100000) }}", limits), HasSubstr("its values have more bytes than"));
  // What is gone counts no more.
  EXPECT_EQ(*Render("{% for i in range(500) %}{% set a = 'x' * 100000 ~ i %}{% endfor %}", "{}", limits), "");
}

TEST_F(JinjaTemplateTest, OutputHasABound) {
  const JinjaLimits limits = {.max_output_bytes = 1000};
  EXPECT_THAT(Refusal("{{ 'x' * 1001 }}", limits), HasSubstr("1001 bytes is longer than 1000"));
  EXPECT_TRUE(Render("{{ 'x' * 1000 }}", "{}", limits).ok());
}

TEST_F(JinjaTemplateTest, ATemplateHasABound) {
  EXPECT_THAT(Refusal("12345", {.max_template_bytes = 4}), HasSubstr("5 bytes are more than 4"));
  EXPECT_EQ(Refusal("\xff"), "it is not UTF-8");
}

// What a stack of one megabyte holds: a default one is eight.
void OnASmallStack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 1 << 20), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_F(JinjaTemplateTest, DepthHasABound) {
  OnASmallStack([] {
    const int n = 20000;
    const int few = 7000;  // of longer texts
    for (const std::string& text : std::vector<std::string>{
             "{{ " + Repeated("(", n) + "1" + Repeated(")", n) + " }}",
             "{{ " + Repeated("[", n) + "1" + Repeated("]", n) + " }}",
             "{{ " + Repeated("{1:", n) + "1" + Repeated("}", n) + " }}",
             "{{ " + Repeated("not ", n) + "1 }}",
             "{{ " + Repeated("- ", n) + "1 }}",
             "{{ 1" + Repeated(" + 1", n) + " }}",
             "{{ 1" + Repeated(" * 1", n) + " }}",
             "{{ 1" + Repeated(" or 0", n) + " }}",
             "{{ 1" + Repeated(" and 1", n) + " }}",
             "{{ 1" + Repeated(" == 1", n) + " }}",
             "{{ 'a'" + Repeated("|trim", n) + " }}",
             "{{ 1" + Repeated(" is number()", n) + " }}",
             "{{ a" + Repeated(".a", n) + " }}",
             "{{ a" + Repeated("[0]", n) + " }}",
             "{{ a" + Repeated("()", n) + " }}",
             "{{ a" + Repeated("(a", n) + Repeated(")", n) + " }}",
             "{{ 1" + Repeated(" if 1 else 1", n) + " }}",
             Repeated("{% if 1 %}", few) + Repeated("{% endif %}", few),
             "{% if 0 %}" + Repeated("{% elif 0 %}", few) + "{% endif %}",
             Repeated("{% for i in [1] %}", few) + Repeated("{% endfor %}", few),
             Repeated("{% macro m() %}", few) + Repeated("{% endmacro %}", few),
             Repeated("{% set x %}", few) + Repeated("{% endset %}", few),
             Repeated("{% filter trim %}", few) + Repeated("{% endfilter %}", few),
             Repeated("{% call m() %}", few) + Repeated("{% endcall %}", few),
             "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
             "{% macro m(x) %}{{ m(x=m) }}{% endmacro %}{{ m(1) }}",
             "{% macro m() %}{% for i in [1] %}{% if 1 %}{{ ('' ~ m())|trim }}{% endif %}{% endfor %}{% "
             "endmacro %}{{ m() }}",
         }) {
      EXPECT_THAT(Refusal(text), HasSubstr("nested deeper than 160")) << text.substr(0, 60);
    }
  });
}

// Values that hold each other, or lie deep in each other: printing, comparing and hashing them ends, and so
// does their end.
TEST_F(JinjaTemplateTest, DeepAndCircularValuesEnd) {
  OnASmallStack([] {
    const std::string deep =
        "{% set ns = namespace(x=[1]) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    const std::string deep_tuple =
        "{% set ns = namespace(x=(1, 2)) %}{% for i in range(20000) %}{% set ns.x = (ns.x, 1) %}{% endfor %}";
    const std::string circle = "{% set a = [] %}{% set _ = a.append(a) %}";
    const std::string two = "{% set a = [] %}{% set b = [a] %}{% set _ = a.append(b) %}";
    EXPECT_EQ(Text(deep + "{{ ns.x|length }}{% set ns.x = 0 %}"), "1");
    EXPECT_EQ(Text(circle + "{{ a|length }}"), "1");
    EXPECT_EQ(Text("{% set ns = namespace(f=none) %}{% for i in range(20000) %}{% set ns.f = [ns.f].append "
                   "%}{% endfor %}"),
              "");
    for (const std::string& text :
         {deep + "{{ ns.x|tojson }}", deep + "{{ ns.x }}", deep + "{{ ns.x == [ns.x] }}",
          deep_tuple + "{{ {ns.x: 1} }}", circle + "{{ a|tojson }}", circle + "{{ a }}",
          circle + "{{ a ~ '' }}", two + "{{ a == b }}",
          std::string("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns|tojson }}"),
          std::string("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns|string }}")}) {
      EXPECT_THAT(Refusal(text), HasSubstr("nested deeper than 160")) << text;
    }
  });
}

TEST_F(JinjaTemplateTest, DeepJsonIsRefused) {
  const StatusOr<std::string> output =
      Render("{{ x|tojson }}", R"({"x": )" + Repeated("[", 500) + Repeated("]", 500) + "}");
  EXPECT_THAT(output.status().message(), HasSubstr("nested deeper than 160"));
  EXPECT_EQ(Text("{{ x|tojson }}", R"({"x": )" + Repeated("[", 100) + Repeated("]", 100) + "}"),
            Repeated("[", 100) + Repeated("]", 100));
}

TEST_F(JinjaTemplateTest, OneTemplateServesManyThreads) {
  const auto parsed = JinjaTemplate::Parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m %}{{ ns.n }},{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const JsonValue values = *ParsePythonJson(R"({"messages": [1, 2, 3, 4]})");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) ASSERT_EQ(*(*parsed)->Render(values, Noon()), "1,3,6,10,");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tramontane
