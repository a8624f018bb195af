// Whether a sanitizer's allocator and shadow stand in for the system's: tests of memory as the
// kernel counts it say nothing then.
#pragma once

#ifndef __has_feature
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif
