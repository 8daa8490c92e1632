// Routes that leave the process and come back (H18, H28).
#include <moetap/error.h>
#include <moetap/routes_json.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sample_routes.h"
#include "throws.h"

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
  EXPECT_TRUE(text.starts_with(
      R"({"start": 5, "end": 9, "dtype": "int16", "shape": [4, 3, 2], "npy": "k05VTVBZ)"))
      << text;
  EXPECT_TRUE(text.ends_with("\"}")) << text;
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
  refuse("[4, 3, 2]", "[4, 2, 3]", {"[4,2,3]"});
  refuse("k05V", "k15V", {".npy"});
  refuse("k05V", "!05V", {"base64"});
  refuse("\"npy\"", "\"npz\"", {"\"npy\"", "not there"});
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
  EXPECT_NO_THROW(
      from_json(replaced(good, "{", "{\"x\": [{\"start\": 1}, {\"start\": 1}], "), kShape));
}

TEST(RoutesJson, SaysWhatIsWrongInFewWords) {
  const std::string good = to_json(sample_routes(kShape, {5, 9}), IdType::int16);
  const std::string much(1'000'000, 'x');
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"5", '"' + much + '"'},
                                 {"int16", much},
                                 {"{", "{\"" + much + "\": 1, \"" + much + "\": 2, "},
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
  refuse("[[7, 6, \"stale\"]]", {"[7, 6)"});
  refuse("[[6, 7, \"present\"]]", {"\"present\""});
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
  refuse(replaced(good, "(4, 3, 2)", "(3, 4, 2)"), {"(3, 4, 2)", "3 layers"});
  refuse(replaced(good, "(4, 3, 2)", "(5, 3, 2)"), {"5 tokens"});
  refuse(replaced(good, "(4, 3, 2), } ", "(-4, 3, 2), }"), {"-4 tokens"});
  refuse(replaced(good, "), } ", "), }x"), {"(4, 3, 2), }x"});
  refuse(replaced(good, "), } ", std::string("), }\0", 5)), {"(4, 3, 2), }"});
  refuse(replaced(good, " \n", "  "), {"(4, 3, 2)"});
  refuse(replaced(good, std::string("NUMPY\x01", 6), "NUMPY\x02"), {"format 1.0"});
  expect_throw<ArgumentError>([&] { from_npy(good, ModelShape::uniform(3, 1, 16), 0); },
                              {"(4, 3, 2)", "top-1"});
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
