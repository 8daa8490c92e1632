#include <moetap/version.h>

#include <gtest/gtest.h>

#include <string>

namespace moetap {
namespace {

TEST(Version, IsTheLibrarys) { EXPECT_STREQ(version(), MOETAP_VERSION); }

TEST(Version, HasItsNumbers) {
  EXPECT_EQ(std::to_string(MOETAP_VERSION_MAJOR) + "." + std::to_string(MOETAP_VERSION_MINOR) +
                "." + std::to_string(MOETAP_VERSION_PATCH),
            MOETAP_VERSION);
}

}  // namespace
}  // namespace moetap
