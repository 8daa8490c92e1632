// Configurations that are no JSON, or such as no reader should take.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

TEST(Config, MalformedJsonIsAnErrorWithItsPosition) {
  expect_throw<ArgumentError>([] { ModelShape::from_config("{\n\"num_experts\": 8,,}"); },
                              {"line 2", "column 18", "at \",\""});
  const std::string much(1000, 'x');
  expect_throw<ArgumentError>(
      [&] { ModelShape::from_config("{\"" + much + "\": \"" + much + "\", \"a\": None}"); },
      {"line 1", "invalid literal", "at \"None\""});
  expect_throw<ArgumentError>([] { ModelShape::from_config("{Infinity: 1}"); }, {"\"Infinity\""});
  expect_throw<ArgumentError>([] { ModelShape::from_config("{\"a\": Infinity"); }, {"line 1"});
  expect_throw<ArgumentError>([] { ModelShape::from_config(""); }, {"line 1"});
}

// What was read there, whatever it was.
TEST(Config, MalformedJsonIsShown) {
  const std::string long_text(3000, 'x');
  const struct {
    std::string json;
    std::vector<std::string_view> words;
  } cases[] = {
      {R"({"x": tru})", {"line 1, column 10", R"(at "tru}")"}},
      {"{\"x\": tru\n}", {"line 1, column 10", R"(at "tru\x0a")"}},
      {R"({"x": tru)", {"line 1, column 10", R"(at the end, after "tru")"}},
      {R"({"x": tru"y"})", {R"(at "tru\"")"}},
      {R"({"x": -})", {"invalid number", R"(at "-}")"}},
      {R"({"x": 1.5.2})", {R"(at "1.5.2")"}},
      {R"({"x": Infinityy})", {R"(at "Infinityy")"}},
      {R"({"x": -Infinityy})", {R"(at "-Infinityy")"}},
      {R"({"x": [Infinity, -Infinity, NaN, tru]})", {"line 1, column 37", R"(at "tru]")"}},
      {R"({"x": [NaN "y"]})", {R"(at "NaN")"}},
      {R"({"x": ["y" NaN]})", {R"(at "NaN")"}},
      {R"({"x": [1, Infinity,, 2]})", {"column 20", R"(at ",")"}},
      {R"({"x": 1 "why"})", {"unexpected string literal", R"(at "\"why\"")"}},
      {R"({"x": 1 234})", {"unexpected number literal", R"(at "234")"}},
      {R"({"x": "abc)", {R"(at the end, after "\"abc")"}},
      {"{\"x\": \"abc\n\", \"y\": 1}", {"column 11", R"(at "\"abc\x0a")"}},
      {"{\"x\": \"\xff\"}", {R"(at "\"\xff")"}},
      {"{\"x\": \x01\x7f\xc3\xa9}", {R"(at "\x01\x7f\xc3\xa9")"}},
      {"{\"x\": 8  \n ", {"line 2", R"(at the end, after "8")"}},
      {" \n", {"line 2", "at the end"}},
      {"{\"" + long_text + "\": 1,\n\"y\": tru}", {"line 2, column 9", R"(at "tru}")"}},
      {"{\"y\": " + long_text + "}", {R"(at "xxx)", R"(" ... "xxx)", "(3000 bytes, cut)"}},
      {"{\"y\": \"" + long_text + "\n\"}", {R"(at "\"xxx)", R"(xxx\x0a")", "(3002 bytes, cut)"}},
      {std::string("{\"x\": 1\0}", 9), {R"(at "1\x00")"}},
  };
  for (const auto& [json, words] : cases) {
    SCOPED_TRACE(json.substr(0, 60));
    for (const std::string_view word : words) {
      expect_throw<ArgumentError>([&, text = json] { ModelShape::from_config(text); }, {word});
    }
  }
}

TEST(Config, RefusesWhatIsNestedTooDeeplyOrSaidTwice) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const std::string rest = R"("num_experts_per_tok": 2, "num_experts": 8, "num_hidden_layers": 4)";
  for (const char* key : {"num_experts", "num_hidden_layers", "moe_layers", "decoder_sparse_step",
                          "first_k_dense_replace", "mlp_only_layers", "anything"}) {
    const std::string text = fmt::format("{{\"{}\": {}, {}}}", key, deep, rest);
    expect_throw<ArgumentError>([&] { ModelShape::from_config(text); },
                                {"the configuration", "nested 65 deep", "up to 64"});
  }
  expect_throw<ArgumentError>(
      [&] { ModelShape::from_config("{" + rest + ", \"moe_layers_enum\": \"" + deep + "\"}"); },
      {"moe_layers_enum", "numbers and commas"});
  expect_throw<ArgumentError>(
      [&] { ModelShape::from_config("{\"num_experts\": 16, " + rest + "}"); },
      {"\"num_experts\" twice"});
  expect_throw<ArgumentError>(
      [&] { ModelShape::from_config("{\"rope_theta\": 1e999, " + rest + "}"); }, {"1e999"});
}

}  // namespace
}  // namespace moetap
