#include <moetap/error.h>

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>

namespace moetap {
namespace {

const std::string kWhat = "what is wrong";

template <class Type, class Standard>
struct Case {
  static Type make() {
    if constexpr (std::is_same_v<Type, StepFailed>) {
      return StepFailed(Step{7}, kWhat);
    } else if constexpr (std::is_same_v<Type, SystemError> || std::is_same_v<Type, DeviceError>) {
      return Type(5, kWhat);
    } else {
      return Type(kWhat);
    }
  }
  using Base = Standard;
};

using Cases =
    ::testing::Types<Case<ArgumentError, std::invalid_argument>,
                     Case<RangeError, std::out_of_range>, Case<StateError, std::runtime_error>,
                     Case<TimeoutError, std::runtime_error>, Case<SystemError, std::system_error>,
                     Case<DeviceError, std::runtime_error>, Case<MismatchError, std::runtime_error>,
                     Case<OwnedError, std::runtime_error>, Case<StepFailed, std::runtime_error>,
                     Case<CollectiveError, std::runtime_error>,
                     Case<RowsNotPresent, std::runtime_error>>;

template <class>
constexpr std::size_t kCount = 0;
template <class... Each>
constexpr std::size_t kCount<::testing::Types<Each...>> = sizeof...(Each);

template <class>
class ErrorTest : public ::testing::Test {};
TYPED_TEST_SUITE(ErrorTest, Cases);

template <class As, class One>
std::string caught_as(const One& error) {
  try {
    throw error;
  } catch (const As& caught) {
    return caught.what();
  } catch (...) {
    return "something else";
  }
}

TYPED_TEST(ErrorTest, IsOneOfOursAndOneOfTheStandards) {
  const auto error = TypeParam::make();
  EXPECT_NE(std::string(error.what()).find(kWhat), std::string::npos);
  EXPECT_EQ(caught_as<Error>(error), error.what());
  EXPECT_EQ(caught_as<typename TypeParam::Base>(error), error.what());
  EXPECT_EQ(caught_as<std::exception>(error), error.what());
}

// A class of the header that the cases above do not have would go untested.
TEST(Errors, AllAreTested) {
  std::ifstream file(MOETAP_SOURCE_ROOT "/lib/include/moetap/error.h");
  std::stringstream header;
  header << file.rdbuf();
  const std::string text = header.str();
  const std::regex declaration(R"(\nclass MOETAP_API \w+ : public detail::ErrorAs)");
  const std::sregex_iterator first(text.begin(), text.end(), declaration);
  EXPECT_EQ(static_cast<std::size_t>(std::distance(first, {})), kCount<Cases>);
}

}  // namespace
}  // namespace moetap
