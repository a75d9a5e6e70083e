#pragma once

/// What tests of messages and of printing share.

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace {

template <typename T>
std::string printed(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks\n" << part;
}

/// The message of the error of type Error that `call` throws.
template <typename Error = c10::ValueError, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing thrown";
}

template <typename Error = c10::ValueError, typename Call>
void expect_error(const Call& call, const std::string& part) {
  expect_contains(message_of<Error>(call), part);
}

}  // namespace
