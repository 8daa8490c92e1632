#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "test/lib/sample_routes.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::sample_id;
using test::sample_routes;

const ModelShape kNarrow({1, 4}, 3, 256);
const ModelShape kWide({1, 4}, 3, 40'000);

template <class Id>
std::vector<Id> ids_as(const Routes& routes, IdType type) {
  const std::vector<std::byte> bytes = to_ids(routes, type);
  std::vector<Id> ids(bytes.size() / sizeof(Id));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

template <class Id>
void expect_ids(const ModelShape& shape, IdType type) {
  const Routes routes = sample_routes(shape, {5, 15});
  const std::vector<Id> ids = ids_as<Id>(routes, type);
  ASSERT_EQ(ids.size(), 10 * shape.row_ids());
  std::size_t next = 0;
  for (std::int64_t position = 5; position < 15; ++position) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int k = 0; k < 3; ++k) {
        ASSERT_EQ(ids[next++], static_cast<Id>(sample_id(shape, position, layer, k)));
      }
    }
  }
}

TEST(ToIds, ConvertsBetweenAllTypesThatHoldTheIds) {
  expect_ids<std::uint8_t>(kNarrow, IdType::uint8);
  expect_ids<std::uint16_t>(kNarrow, IdType::uint16);
  expect_ids<std::int16_t>(kNarrow, IdType::int16);
  expect_ids<std::int32_t>(kNarrow, IdType::int32);
  expect_ids<std::int64_t>(kNarrow, IdType::int64);
  expect_ids<std::uint16_t>(kWide, IdType::uint16);
  expect_ids<std::int32_t>(kWide, IdType::int32);
  expect_ids<std::int64_t>(kWide, IdType::int64);
}

TEST(ToIds, RefusesATypeThatCannotHoldEveryId) {  // H21
  const Routes routes = sample_routes(kWide, {0, 1});
  expect_throw<RangeError>([&] { to_ids(routes, IdType::uint8); }, {"uint8", "40000"});
  expect_throw<RangeError>([&] { to_ids(routes, IdType::int16); }, {"int16", "40000"});
}

TEST(ToIds, RowsNotPresentAreMinusOneInSignedTypesOnly) {
  for (const RowState state :
       {RowState::missing, RowState::stale, RowState::clobbered, RowState::unverified}) {
    Routes routes = sample_routes(kNarrow, {0, 3});
    routes.states()[1] = state;  // its bytes look like a row
    const auto ids = ids_as<std::int32_t>(routes, IdType::int32);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(ids[i] == -1, i / kNarrow.row_ids() == 1) << i;
    }
    EXPECT_EQ(ids_as<std::int16_t>(routes, IdType::int16)[kNarrow.row_ids()], -1);
    EXPECT_EQ(ids_as<std::int64_t>(routes, IdType::int64)[kNarrow.row_ids()], -1);
    expect_throw<RowsNotPresent>([&] { to_ids(routes, IdType::uint8); }, {row_state_name(state)});
    expect_throw<RowsNotPresent>([&] { to_ids(routes, IdType::uint16); }, {row_state_name(state)});
  }
}

TEST(ToIds, OfAllHiddenLayersLieAtTheModelsLayer) {  // H31
  const ModelShape shape({1, 4}, 3, 200, 6);
  Routes routes = sample_routes(shape, {5, 8});
  routes.states()[1] = RowState::missing;
  for (const std::int64_t dense : {-1, 0, 77}) {
    const std::vector<std::byte> bytes = to_ids(routes, IdType::int32, hidden_layers(dense));
    ASSERT_EQ(bytes.size(), 3u * 6 * 3 * 4);
    for (std::int64_t token = 0; token < 3; ++token) {
      for (int layer = 0; layer < 6; ++layer) {
        for (int k = 0; k < 3; ++k) {
          std::int32_t id;
          std::memcpy(&id, bytes.data() + ((token * 6 + layer) * 3 + k) * 4, sizeof id);
          std::int64_t expected = dense;
          if (layer == 1 || layer == 4) {
            expected = token == 1 ? -1 : std::int64_t{sample_id(shape, 5 + token, layer / 4, k)};
          }
          EXPECT_EQ(id, expected) << token << ", " << layer << ", " << k;
        }
      }
    }
  }
  routes.states()[1] = RowState::present;
  expect_throw<RangeError>([&] { to_ids(routes, IdType::uint8, hidden_layers()); },
                           {"uint8", "-1", "dense_id"});
  expect_throw<RangeError>([&] { to_ids(routes, IdType::uint8, hidden_layers(256)); }, {"256"});
  expect_throw<RangeError>([&] { to_ids(routes, IdType::int16, hidden_layers(32768)); }, {"32768"});
  EXPECT_NO_THROW(to_ids(routes, IdType::uint8, hidden_layers(255)));
  // Where every layer is MoE there is nothing to fill.
  EXPECT_NO_THROW(to_ids(sample_routes(ModelShape::uniform(2, 3, 200), {0, 2}), IdType::uint8,
                         hidden_layers()));
}

TEST(ToIds, Id255Of256ExpertsIsAnId) {             // H21
  Routes routes(ModelShape({0}, 1, 256), {0, 1});  // all bytes 0xFF
  routes.states()[0] = RowState::present;
  EXPECT_EQ(ids_as<std::int32_t>(routes, IdType::int32), std::vector<std::int32_t>{255});
}

TEST(Npy, HasTheDocumentedBytes) {
  Routes routes(ModelShape({0}, 2, 256), {7, 9});
  const std::byte ids[] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{255}};
  std::copy(std::begin(ids), std::end(ids), routes.bytes().begin());
  routes.states()[0] = routes.states()[1] = RowState::present;
  std::string dict = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 1, 2), }";
  dict.append(128 - 10 - dict.size() - 1, ' ');
  const std::string expected = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict + "\n" +
                               std::string("\x01\x00\x02\x00\x03\x00\xFF\x00", 8);
  EXPECT_EQ(to_npy(routes, IdType::int16), expected);
  EXPECT_EQ(base64_decode(to_npy_base64(routes, IdType::int16)),
            std::vector<std::byte>(std::as_bytes(std::span(expected)).begin(),
                                   std::as_bytes(std::span(expected)).end()));
}

TEST(Npy, DataStartsAtAMultipleOf64WhateverTheShape) {
  for (const std::int64_t tokens : {0, 1, 9, 10, 99, 100, 12345}) {
    const std::string file = to_npy(Routes(kNarrow, {0, tokens}), IdType::int32);
    const std::size_t data = static_cast<std::size_t>(tokens) * kNarrow.row_ids() * 4;
    EXPECT_EQ((file.size() - data) % 64, 0u);
    EXPECT_EQ(file[file.size() - data - 1], '\n');
  }
}

class NumpyFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  // An interpreter that has numpy, or nothing. The first in the path may be one without.
  static std::string find_python() {
    for (const char* python : {"python3", "/usr/bin/python3"}) {
      if (std::system(fmt::format("{} -c 'import numpy' 2>/dev/null", python).c_str()) == 0)
        return python;
    }
    return "";
  }

  const std::string path_ = testing::TempDir() + "moetap." + std::to_string(getpid()) + ".npy";
};

TEST_F(NumpyFile, IsReadByNumpy) {
  const std::string python = find_python();
  if (python.empty()) GTEST_SKIP() << "there is no python3 with numpy";
  struct {
    ModelShape shape;
    IdType type;
  } cases[] = {{kNarrow, IdType::uint8},
               {kNarrow, IdType::int16},
               {kWide, IdType::uint16},
               {kWide, IdType::int32},
               {kWide, IdType::int64}};
  for (const auto& [shape, type] : cases) {
    std::ofstream(path_, std::ios::binary) << to_npy(sample_routes(shape, {0, 10}), type);
    const std::string experts = std::to_string(shape.num_experts());
    const std::string command = fmt::format(
        "{} -c \"import numpy as n; a = n.load('{}'); assert a.dtype == '{}', a.dtype; "
        "t, l, k = n.indices((10, 2, 3)); "
        "n.testing.assert_array_equal(a, (t * 1009 + l * 31 + k * 7) % {})\"",
        python, path_, id_type_name(type), shape.num_experts());
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
}

std::string encode(std::string_view text) {
  return base64_encode(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(Base64, EncodesTheVectorsOfRfc4648) {
  EXPECT_EQ(encode(""), "");
  EXPECT_EQ(encode("f"), "Zg==");
  EXPECT_EQ(encode("fo"), "Zm8=");
  EXPECT_EQ(encode("foo"), "Zm9v");
  EXPECT_EQ(encode("foob"), "Zm9vYg==");
  EXPECT_EQ(encode("fooba"), "Zm9vYmE=");
  EXPECT_EQ(encode("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encode("\xFB\xEF\xFF"), "++//");
}

TEST(Base64, DecodesWhatItEncodes) {
  std::mt19937 random(1);
  for (std::size_t size = 0; size < 300; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
  }
}

TEST(Base64, BadTextIsAnErrorWithTheOffset) {
  const std::pair<const char*, const char*> cases[] = {
      {"Zm9v!mFy", "offset 4"}, {"Zm9vYg", "offset 6"},     {"Zm=vYg==", "offset 2"},
      {"Zm9vY===", "offset 5"}, {"====", "offset 0"},       {"Zg==Zg==", "offset 2"},
      {"Zm9!b", "offset 3"},    {"Zm9v!mFyZg", "offset 4"}, {"Zm9v=", "offset 5"},
      {"Zm9\n", "offset 3"},    {"Zh==", "offset 1"},       {"Zm9=", "offset 2"},
      {"Zm-_", "offset 2"},     {"Zm\xFF\xFF", "offset 2"}};
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.first);
    expect_throw<ArgumentError>([&] { base64_decode(bad.first); }, {bad.second});
  }
}

}  // namespace
}  // namespace moetap
