// Options that Python gives as words: transport="device", on_full="drop".
#pragma once

#include <moetap/error.h>

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "python/src/common.h"

namespace moetap::python {

// The words for the values of an enum, and its name in messages. Specialised for each.
template <class E>
struct Words;

template <class E>
std::string_view word_of(E value) {
  for (const auto& [word, of] : Words<E>::all) {
    if (of == value) return word;
  }
  return "?";
}

// A word as it was given. ArgumentError that lists the words, when the value is needed.
template <class E>
struct Choice {
  std::string given;
  operator E() const {
    std::string words;
    for (const auto& [word, value] : Words<E>::all) {
      if (word == given) return value;
      words += fmt::format("{}'{}'", words.empty() ? "" : ", ", word);
    }
    throw ArgumentError(
        fmt::format("{} is '{}'; it must be one of {}", Words<E>::name, given, words));
  }
};

}  // namespace moetap::python

// Defines the words of an enum. `literal` is the type in the package's stubs.
#define MOETAP_WORDS(E, its_name, literal, ...)                                             \
  template <>                                                                               \
  struct moetap::python::Words<E> {                                                         \
    static constexpr const char* name = its_name;                                           \
    static constexpr auto all = std::to_array<std::pair<std::string_view, E>>(__VA_ARGS__); \
  };                                                                                        \
  template <>                                                                               \
  struct nanobind::detail::type_caster<moetap::python::Choice<E>> {                         \
    NB_TYPE_CASTER(moetap::python::Choice<E>, const_name("typing.Literal[" literal "]"))    \
    bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {                \
      if (!PyUnicode_Check(source.ptr())) return false;                                     \
      Py_ssize_t size = 0;                                                                  \
      const char* text = PyUnicode_AsUTF8AndSize(source.ptr(), &size);                      \
      if (text == nullptr) {                                                                \
        PyErr_Clear();                                                                      \
        return false;                                                                       \
      }                                                                                     \
      value.given.assign(text, static_cast<std::size_t>(size));                             \
      return true;                                                                          \
    }                                                                                       \
    static handle from_cpp(const moetap::python::Choice<E>& choice, rv_policy,              \
                           cleanup_list*) noexcept {                                        \
      return PyUnicode_FromStringAndSize(choice.given.data(),                               \
                                         static_cast<Py_ssize_t>(choice.given.size()));     \
    }                                                                                       \
  }
