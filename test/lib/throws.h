// What an error says is part of the interface: messages name the value, the limit and the remedy.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace moetap::test {

// Expects `call` to throw exactly an `Error` whose message has each of these words.
template <class Error, class Call>
void expect_throw(Call&& call, std::initializer_list<std::string_view> words = {}) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(typeid(error), typeid(Error));
    for (const std::string_view word : words) {
      EXPECT_NE(std::string_view(error.what()).find(word), std::string_view::npos)
          << "\"" << word << "\" is not in: " << error.what();
    }
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another error was thrown: " << other.what();
  }
}

}  // namespace moetap::test
