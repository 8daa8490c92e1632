// Routes that leave the process and come back (H18, H28).
#include <moetap/error.h>
#include <moetap/routes_json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "test/lib/sample_routes.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::sample_routes;

const ModelShape kShape = ModelShape::uniform(3, 2, 16);
const ModelShape kWide = ModelShape::uniform(2, 4, 512);

void expect_equal(const Routes& found, const Routes& expected) {
  EXPECT_EQ(found.range(), expected.range());
  EXPECT_TRUE(std::ranges::equal(found.states(), expected.states()));
  EXPECT_TRUE(std::ranges::equal(found.bytes(), expected.bytes()));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto found = text.find(from);
  EXPECT_NE(found, std::string::npos) << from;
  return found == std::string::npos ? text : text.replace(found, from.size(), to);
}

TEST(RoutesJson, ComesBackAsItWas) {
  for (const ModelShape& shape : {kShape, kWide}) {
    const Routes routes = sample_routes(shape, {5, 9});
    for (const IdType type :
         {IdType::uint8, IdType::uint16, IdType::int16, IdType::int32, IdType::int64}) {
      if (!holds_ids(type, shape.num_experts())) continue;
      const std::string text = to_json(routes, type);
      expect_equal(from_json(text, shape), routes);
      expect_equal(from_npy(to_npy(routes, type), shape, 5), routes);
    }
  }
}

TEST(RoutesJson, SaysWhatItIsOf) {
  const std::string text = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  EXPECT_TRUE(text.starts_with(R"({"start": 5, "end": 9, "dtype": "int16", "shape": [4, 3, 2], )"
                               R"("layers": [0, 1, 2], "num_experts": 16, "npy": "k05VTVBZ)"))
      << text;
  EXPECT_TRUE(text.ends_with("\"}")) << text;
}

// Arrays are taken out of the text before it is parsed.
TEST(RoutesJson, ComesBackHoweverItIsWritten) {
  const Routes routes = sample_routes(kShape.with_weights(WeightType::float32), {5, 9});
  const std::string text = to_json(routes, IdType::int32);
  const auto json = nlohmann::json::parse(text);
  expect_equal(from_json(json.dump(4), routes.shape()), routes);
  nlohmann::ordered_json other;  // with the weights before the ids
  other["weights"] = json["weights"];
  other.update(json);
  expect_equal(from_json(other.dump(), routes.shape()), routes);
  expect_equal(from_json(replaced(text, "\"k05V", "\"\\u006b05V"), routes.shape()), routes);
  for (const char* index : {"0", "1", "true", "[\"\"]"}) {
    for (const bool of_weights : {false, true}) {
      auto damaged = json;
      (of_weights ? damaged["weights"] : damaged)["npy"] = nlohmann::json::parse(index);
      expect_throw<ArgumentError>([&] { from_json(damaged.dump(), routes.shape()); },
                                  {"\"npy\" is " + std::string(index), "a string"});
    }
  }
}

TEST(RoutesJson, AnEmptyRangeComesBackToo) {
  expect_equal(from_json(to_json(Routes(kShape, {7, 7}), IdType::uint8), kShape),
               Routes(kShape, {7, 7}));
}

TEST(RoutesJson, TellsWhyRowsAreNotThere) {
  Routes routes(kShape, {5, 11});
  const Routes present = sample_routes(kShape, {5, 6});
  std::ranges::copy(present.bytes(), routes.bytes().begin());
  const RowState states[] = {RowState::present,   RowState::stale,   RowState::stale,
                             RowState::clobbered, RowState::missing, RowState::unverified};
  std::ranges::copy(states, routes.states().begin());
  const std::string text = to_json(routes, IdType::int32);
  EXPECT_NE(
      text.find(R"("not_present": [[6, 8, "stale"], [8, 9, "clobbered"], [9, 10, "missing"], )"
                R"([10, 11, "unverified"]])"),
      std::string::npos)
      << text;
  // The ids of a row that was not verified are not there, so it cannot be trusted afterwards.
  routes.states()[5] = RowState::missing;
  expect_equal(from_json(text, kShape), routes);
  expect_throw<RowsNotPresent>([&] { to_json(routes, IdType::uint8); });
  // Without the reasons they are missing.
  const Routes bare = from_npy(to_npy(routes, IdType::int32), kShape, 5);
  EXPECT_EQ(bare.count(RowState::missing), 5u);
}

// Two engines, one after the other, each with its own rows.
TEST(RoutesJson, PartsFromTwoProcessesMeetOrAreRefused) {  // H28
  const Routes whole = sample_routes(kShape, {0, 9});
  const auto [first, second] = whole.split(5);
  Routes joined = from_json(to_json(first, IdType::int16), kShape);
  const Routes next = from_json(to_json(second, IdType::uint8), kShape);
  joined.append(next);
  expect_equal(joined, whole);
  expect_throw<ArgumentError>([&] { joined.append(next); }, {"[5, 9)", "overlap"});
}

TEST(RoutesJson, RefusesOtherText) {
  expect_throw<ArgumentError>([] { from_json("", kShape); }, {"routes", "no valid JSON"});
  expect_throw<ArgumentError>([] { from_json("[1]", kShape); }, {"no JSON object"});
  expect_throw<ArgumentError>([] { from_json("{}", kShape); }, {"\"start\"", "not there"});
  const std::string good = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  const auto refuse = [&](const char* from, const char* to,
                          std::initializer_list<std::string_view> words) {
    expect_throw<ArgumentError>([&] { from_json(replaced(good, from, to), kShape); }, words);
  };
  refuse("\"start\": 5", "\"start\": \"5\"", {"\"start\"", "5"});
  refuse("\"start\": 5", "\"start\": 5.9", {"\"start\"", "5.9"});
  refuse("\"start\": 5", "\"start\": true", {"\"start\"", "true"});
  refuse("\"start\": 5", "\"start\": 18446744073709551611", {"\"start\"", "18446744073709551611"});
  refuse("\"end\": 9", "\"end\": 9.0", {"\"end\"", "9.0"});
  refuse("[4, 3, 2]", "[4, 3.5, 2]", {"\"shape\"", "3.5"});
  refuse("[4, 3, 2]", "[4, 3, 2, 1]", {"[4,3,2,1]"});
  refuse("\"start\": 5", "\"start\": 4", {"[4, 9)", "[4, 8)"});
  refuse("\"start\": 5", "\"start\": -1", {"position -1"});
  refuse("\"start\": 5", "\"start\": 9223372036854775807",
         {"4 rows from position 9223372036854775807"});
  refuse("\"end\": 9", "\"end\": 10", {"[5, 10)", "[5, 9)"});
  refuse("int16", "int32", {"int32", "int16"});
  refuse("[4, 3, 2]", "[4, 2, 3]", {"[4,2,3]", "[4,3,2]"});
  refuse("k05V", "k15V", {".npy"});
  refuse("k05V", "!05V", {"base64"});
  refuse("\"dtype\": \"int16\", ", "", {"\"dtype\"", "not there", "a string"});
}

// It could be what tells these rows from others.
TEST(RoutesJson, RefusesWhatIsNotUnderstood) {
  const std::string good = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  const auto refuse = [](const std::string& text, const ModelShape& shape,
                         std::initializer_list<std::string_view> words) {
    expect_throw<ArgumentError>([&] { from_json(text, shape); }, words);
  };
  for (const char* key : {"num_hidden_layers", "top_k", "model", "npz", "Start", ""}) {
    const std::string member = "\"" + std::string(key) + "\": 7, \"end\"";
    refuse(replaced(good, "\"end\"", member), kShape,
           {"\"" + std::string(key) + "\"", "is 7", "not understood", "num_experts"});
  }
  refuse(replaced(good, "\"npy\"", "\"npz\""), kShape, {"\"npz\"", "not understood"});

  const ModelShape weighed = kShape.with_weights(WeightType::float32);
  const std::string weights = to_json(sample_routes(weighed, {5, 9}), IdType::int16);
  EXPECT_NO_THROW(from_json(weights, weighed));
  refuse(replaced(weights, "\"dtype\": \"float32\"", "\"dtype\": \"float32\", \"scale\": 2"),
         weighed, {"\"weights.scale\"", "is 2", "not understood"});
}

TEST(RoutesJson, RefusesOtherLayersAndExperts) {  // H31
  const ModelShape shape({1, 2}, 2, 16);
  const std::string text = to_json(sample_routes(shape, {5, 9}), IdType::int16);
  EXPECT_NO_THROW(from_json(text, ModelShape({1, 2}, 2, 16, 7)));  // its rows are the same
  expect_throw<ArgumentError>(
      [&] {
        from_json(text, ModelShape({2, 3}, 2, 16));
      },
      {"[1,2]", "MoE layers 2, 3"});
  expect_throw<ArgumentError>(
      [&] {
        from_json(text, ModelShape({1, 2}, 2, 17));
      },
      {"16 experts", "17 experts", "read them as the shape"});
  const auto refuse = [&](const char* from, const char* to,
                          std::initializer_list<std::string_view> words) {
    expect_throw<ArgumentError>([&] { from_json(replaced(text, from, to), shape); }, words);
  };
  refuse("\"layers\": [1, 2], ", "", {"\"layers\"", "not there"});
  refuse("\"num_experts\": 16, ", "", {"\"num_experts\"", "not there"});
  refuse("[1, 2]", "[1, 2.5]", {"\"layers\"", "2.5"});
  refuse("[1, 2]", "[1]", {"[1]"});
}

// Its arrays may have all hidden layers, as those that other programs put into such an object.
TEST(RoutesJson, SaysTheShapeOfTheArraysThatItHolds) {  // H31
  const ModelShape plain({1, 3}, 2, 16, 5);
  for (const ModelShape& shape : {plain, plain.with_weights(WeightType::float32)}) {
    const Routes routes = sample_routes(shape, {5, 9});
    const bool weighs = shape.weight_type() != WeightType::none;
    std::string text = to_json(routes, IdType::int16);
    const auto swap = [&](const std::string& from, const std::string& to) {
      text = replaced(text, base64_encode(std::as_bytes(std::span(from))),
                      base64_encode(std::as_bytes(std::span(to))));
    };
    swap(to_npy(routes, IdType::int16), to_npy(routes, IdType::int16, hidden_layers()));
    expect_throw<ArgumentError>([&] { from_json(text, shape); },
                                {"\"shape\" is [4,2,2]", "\"npy\" has [4,5,2]"});
    text = replaced(text, "[4, 2, 2]", "[4, 5, 2]");
    if (weighs) {
      expect_throw<ArgumentError>([&] { from_json(text, shape); },
                                  {"\"shape\" is [4,5,2]", "\"weights.npy\" has [4,2,2]"});
      swap(weights_to_npy(routes), weights_to_npy(routes, hidden_layers()));
    }
    expect_equal(from_json(text, shape), routes);
    for (const char* wrong : {"[4, 2, 2]", "[20, 2]", "[4, 10]", "[5, 4, 2]", "[]"}) {
      expect_throw<ArgumentError>([&] { from_json(replaced(text, "[4, 5, 2]", wrong), shape); },
                                  {"\"shape\" is", "has [4,5,2]"});
    }
  }
}

TEST(RoutesJson, OfAPipelineStageAreReadAsThatStageOnly) {  // H31
  const ModelShape model({1, 2, 4}, 2, 16, 6);
  const Routes whole = sample_routes(model, {0, 4});
  const Routes stage = whole.with_layers({2, 4});
  const std::string text = to_json(stage, IdType::uint8);
  expect_equal(from_json(text, model.with_layers({2, 4})), stage);
  expect_throw<ArgumentError>([&] { from_json(text, model.with_layers({1, 2})); }, {"[2,4]"});
  expect_throw<ArgumentError>([&] { from_json(text, model); }, {"[2,4]", "1, 2, 4"});
}

TEST(RoutesJson, RefusesAnExpertThatIsPickedTwice) {  // H32
  const ModelShape repeats = kShape.with_repeated_experts();
  Routes routes(repeats, {5, 7});
  std::ranges::fill(routes.bytes(), std::byte{0});  // memory that was not written
  std::ranges::fill(routes.states(), RowState::present);
  const std::string text = to_json(routes, IdType::uint8);
  expect_throw<ArgumentError>([&] { from_json(text, kShape); },
                              {"position 5", "layer 0", "expert id 0 is picked twice"});
  expect_equal(from_json(text, repeats), routes);
}

TEST(RoutesJson, RefusesWhatIsNestedTooDeeply) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  const std::string good = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  const auto refuse = [&](const std::string& from, const std::string& to,
                          std::initializer_list<std::string_view> words) {
    expect_throw<ArgumentError>([&] { from_json(replaced(good, from, to), kShape); }, words);
  };
  for (const std::size_t depth : {64u, 65u, 100'000u, 1'000'000u}) {  // inside an object
    refuse("5", nested(depth), {"routes", "nested 65 deep", "up to 64"});
    refuse("[4, 3, 2]", nested(depth), {"nested 65 deep"});
    refuse("\"start\"", "\"not_present\": [" + nested(depth) + "], \"start\"", {"65 deep"});
    expect_throw<ArgumentError>([&] { from_json(nested(depth + 1), kShape); }, {"65 deep"});
  }
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\": ";
  refuse("5", objects, {"65 deep"});
  refuse("5", nested(63), {"\"start\" is [[["});
}

TEST(RoutesJson, RefusesAKeyThatComesTwice) {
  const std::string good = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  expect_throw<ArgumentError>([&] { from_json(replaced(good, "{", "{\"start\": 4, "), kShape); },
                              {"\"start\" twice"});
  expect_throw<ArgumentError>(
      [&] { from_json(replaced(good, "{", "{\"x\": [{\"y\": {}, \"y\": 1}], "), kShape); },
      {"\"y\" twice"});
  // In two objects it comes once each.
  expect_throw<ArgumentError>(
      [&] { from_json(replaced(good, "{", "{\"x\": [{\"start\": 1}, {\"start\": 1}], "), kShape); },
      {"\"x\"", "not understood"});
}

TEST(RoutesJson, SaysWhatIsWrongInFewWords) {
  const std::string good = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  const std::string much(1'000'000, 'x');
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"5", '"' + much + '"'},
                                 {"int16", much},
                                 {"{", fmt::format("{{\"{0}\": 1, \"{0}\": 2, ", much)},
                                 {"{", '"' + much},
                                 {"\"start\"", "\"not_present\": [\"" + much + "\"], \"start\""},
                                 {"[4, 3, 2]", '[' + std::string(999'999, '1') + ']'}}) {
    try {
      from_json(replaced(good, from, to), kShape);
      ADD_FAILURE() << "nothing was thrown for " << from;
    } catch (const ArgumentError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 300u) << from;
    }
  }
  // Neither is a number that no type holds something else than an ArgumentError.
  expect_throw<ArgumentError>([&] { from_json(replaced(good, "5", "1e999"), kShape); }, {"1e999"});
}

TEST(RoutesJson, RefusesReasonsThatDoNotFit) {
  Routes routes(kShape, {5, 7});
  const Routes present = sample_routes(kShape, {5, 6});
  std::ranges::copy(present.bytes(), routes.bytes().begin());
  routes.states()[0] = RowState::present;
  const std::string good = to_json(routes, IdType::int16);
  const auto refuse = [&](const char* to, std::initializer_list<std::string_view> words) {
    expect_throw<ArgumentError>(
        [&] { from_json(replaced(good, "[[6, 7, \"missing\"]]", to), kShape); }, words);
  };
  refuse("[[5, 7, \"stale\"]]", {"row 5", "has ids", "stale"});
  refuse("[[6, 8, \"stale\"]]", {"[5, 7)", "[6, 8)"});
  refuse("[[4, 5, \"stale\"]]", {"[4, 5)"});
  refuse("[[6, 7, \"stale\"], [6, 7, \"missing\"]]", {"[6, 7)", "up to 7", "one state"});
  refuse("[[6, 7, \"missing\"], [6, 7, \"stale\"]]", {"[6, 7)", "up to 7", "one state"});
  refuse("[[7, 6, \"stale\"]]", {"[7, 6)"});
  refuse("[[6, 7, \"present\"]]",
         {"[6,7,\"present\"]", "\"missing\", \"stale\", \"clobbered\", \"unverified\""});
  refuse("[[6, 7]]", {"[6,7]"});
  refuse("[[6, 7, \"stale\", 1]]", {"[6,7,\"stale\",1]"});
  refuse("[[6, \"7\", \"stale\"]]", {"not_present"});
  refuse("[[6, 7.5, \"stale\"]]", {"not_present", "7.5"});
  refuse("[[6, 18446744073709551615, \"stale\"]]", {"not_present", "18446744073709551615"});
  refuse("7", {"not_present", "7"});
}

TEST(NpyReader, RefusesOtherFiles) {
  const Routes routes = sample_routes(kShape, {0, 4});
  const std::string good = to_npy(routes, IdType::int16);
  const auto refuse = [&](const std::string& file, std::initializer_list<std::string_view> words) {
    expect_throw<ArgumentError>([&] { from_npy(file, kShape, 0); }, words);
  };
  for (std::size_t size = 0; size < good.size(); ++size) refuse(good.substr(0, size), {"byte"});
  refuse(good + '\0', {"4 tokens of 12 bytes"});
  refuse(replaced(good, "<i2", ">i2"), {">i2", "little-endian"});
  refuse(replaced(good, "<i2", "<f2"), {"<f2"});
  refuse(replaced(good, "False", "True "), {"C-ordered"});
  refuse(replaced(good, "(4, 3, 2)", "(4, 6)   "), {"shape"});
  refuse(replaced(good, "(4, 3, 2)", "(3, 4, 2)"), {"(3, 4, 2)", "3 layers", "MoE layers 0-2"});
  refuse(replaced(good, "(4, 3, 2)", "(5, 3, 2)"), {"5 tokens"});
  refuse(replaced(good, "(4, 3, 2), } ", "(-4, 3, 2), }"), {"-4 tokens"});
  const auto of_tokens = [&](const std::string& tokens) {  // in a header as long as before
    const std::string shape = "(" + tokens + ", 3, 2), }";
    const std::string_view before = "(4, 3, 2), }";
    return replaced(good, std::string(before) + std::string(shape.size() - before.size(), ' '),
                    shape);
  };
  for (const char* huge : {"1099511627777", "99999999999999999999", "9-9"}) {
    refuse(of_tokens(huge), {huge, "at most 1099511627776"});
  }
  refuse(of_tokens("1099511627776"),
         {"1099511627776 tokens of 12 bytes", "48 bytes follow", "which are 4 tokens", "cut off"});
  refuse(replaced(good, "), } ", "), }x"), {"(4, 3, 2), }x"});
  refuse(replaced(good, "), } ", std::string("), }\0", 5)), {"(4, 3, 2), }"});
  refuse(replaced(good, " \n", "  "), {"(4, 3, 2)"});
  for (const char* version : {"\x02", "\x03"}) {
    refuse(replaced(good, std::string("NUMPY\x01", 6), std::string("NUMPY") + version),
           {std::string("format ") + static_cast<char>('0' + *version) + ".0; 1.0 is read",
            "numpy.save()", "save it again"});
  }
  refuse(replaced(good, "NUMPY", "numpy"), {"format 1.0", "to_npy()"});
  expect_throw<ArgumentError>([&] { from_npy(good, ModelShape::uniform(3, 1, 16), 0); },
                              {"(4, 3, 2)", "top-1"});
}

TEST(NpyReader, SaysWhatIsWrongInOneLine) {
  const std::string good = to_npy(sample_routes(kShape, {0, 4}), IdType::int16);
  for (const std::string& bad : {replaced(good, "<i2", "<f2"), replaced(good, "<i2", "\xFF\n2")}) {
    try {
      from_npy(bad, kShape, 0);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ArgumentError& error) {
      const std::string_view text = error.what();
      EXPECT_EQ(text.find('\n'), text.npos) << text;
      EXPECT_EQ(text.find("  "), text.npos) << text;
    }
  }
}

TEST(NpyReader, TakesRowsOfMoeLayersAndOfAllHiddenLayers) {  // H31
  const ModelShape shape({1, 2, 4}, 2, 16, 6);
  const Routes routes = sample_routes(shape, {0, 4});
  expect_equal(from_npy(to_npy(routes, IdType::int16), shape, 0), routes);
  expect_equal(from_npy(to_npy(routes, IdType::int16, hidden_layers()), shape, 0), routes);
  expect_equal(from_npy(to_npy(routes, IdType::uint8, hidden_layers(0)), shape, 0, 0), routes);
  expect_equal(from_npy(to_npy(routes, IdType::uint16, hidden_layers(65535)), shape, 0, 65535),
               routes);

  const std::string all = to_npy(routes, IdType::int16, hidden_layers());
  for (const ModelShape& other : {shape.with_layers({1, 2}), shape.with_layers({2, 4}),
                                  ModelShape({1, 2, 5}, 2, 16, 6), ModelShape({1, 4}, 2, 16, 6)}) {
    // A layer that has a router in the file, and none in the shape.
    expect_throw<ArgumentError>([&] { from_npy(all, other, 0); },
                                {"position 0", "no router", "-1"});
  }
  // A layer without one, which then misses its routes.
  EXPECT_EQ(from_npy(all, ModelShape({1, 2, 4, 5}, 2, 16), 0).count(RowState::missing), 4u);
  expect_throw<ArgumentError>([&] { from_npy(all, shape, 0, 0); }, {"layer 0", "id -1", "0 was"});
  expect_throw<ArgumentError>(
      [&] {
        from_npy(all, ModelShape({1, 2, 4}, 2, 16, 7), 0);
      },
      {"(4, 6, 2)", "(tokens, 3, 2)", "1, 2, 4", "(tokens, 7, 2)"});
  expect_throw<ArgumentError>(
      [&] {
        from_npy(all, ModelShape({1, 2, 4}, 2, 16), 0);
      },
      {"(4, 6, 2)", "(tokens, 5, 2)"});
}

TEST(NpyReader, TakesWeightsOfEitherForm) {  // H31
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
    const ModelShape shape = ModelShape({1, 3}, 2, 16, 5).with_weights(type);
    Routes routes = sample_routes(shape, {0, 4});
    for (std::size_t i = 0; i < routes.states().size(); ++i) {
      for (std::size_t at = shape.weights_offset(); at < shape.row_bytes(); ++at) {
        routes.bytes()[i * shape.row_bytes() + at] = static_cast<std::byte>(i * 16 + at);
      }
    }
    for (const ArrayLayers layers : {kMoeLayers, hidden_layers()}) {
      const std::string weights = weights_to_npy(routes, layers);
      EXPECT_EQ(to_weights(routes, layers).size(),
                4u * (layers.all_hidden ? 5 : 2) * 2 * weight_bytes(type));
      const Routes back = from_npy(to_npy(routes, IdType::int32, layers), weights, shape, 0);
      EXPECT_EQ(back.weight(2, 1, 1), routes.weight(2, 1, 1));
      for (std::int64_t position = 0; position < 4; ++position) {
        EXPECT_TRUE(std::ranges::equal(back.row(position).subspan(shape.weights_offset()),
                                       routes.row(position).subspan(shape.weights_offset())));
      }
    }
  }
}

TEST(NpyReader, RefusesAnExpertThatIsPickedTwice) {  // H32
  const ModelShape shape({1, 4}, 2, 16);
  for (const IdType type :
       {IdType::uint8, IdType::uint16, IdType::int16, IdType::int32, IdType::int64}) {
    Routes routes = sample_routes(shape, {0, 4});
    const auto last = routes.bytes().last(2);  // the last layer's picks of position 3
    last[0] = last[1];
    for (const ArrayLayers layers : {kMoeLayers, hidden_layers(3)}) {
      const std::string file = to_npy(routes, type, layers);
      expect_throw<ArgumentError>([&] { from_npy(file, shape, 0, 3); },
                                  {"position 3", "layer 4", "picked twice"});
      EXPECT_TRUE(from_npy(file, shape.with_repeated_experts(), 0, 3).all_present());
    }
  }
  // Missing routes are no experts.
  EXPECT_EQ(
      from_npy(to_npy(Routes(shape, {0, 4}), IdType::int16), shape, 0).count(RowState::missing),
      4u);
  EXPECT_TRUE(from_npy(to_npy(sample_routes(ModelShape({1}, 1, 1), {0, 2}), IdType::uint8),
                       ModelShape({1}, 1, 1), 0)
                  .all_present());
}

TEST(NpyReader, RefusesIdsThatTheModelDoesNotHave) {  // H20
  const Routes routes = sample_routes(ModelShape::uniform(3, 2, 300), {0, 40});
  expect_throw<RangeError>([&] { from_npy(to_npy(routes, IdType::int16), kShape, 0); },
                           {"expert id", "16 experts"});
  std::string file = to_npy(sample_routes(kShape, {0, 4}), IdType::int16);
  file[file.size() - 1] = '\x80';
  expect_throw<RangeError>([&] { from_npy(file, kShape, 0); }, {"expert id -"});
}

TEST(NpyReader, ARowWithAMissingRouteIsMissing) {  // H2
  std::string file = to_npy(sample_routes(kShape, {0, 4}), IdType::int16);
  file[file.size() - 1] = file[file.size() - 2] = '\xFF';
  const Routes routes = from_npy(file, kShape, 0);
  EXPECT_EQ(routes.count(RowState::present), 3u);
  EXPECT_EQ(routes.state(3), RowState::missing);
  EXPECT_EQ(routes.row(3)[0], std::byte{0xFF});
}

}  // namespace
}  // namespace moetap
