#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

struct TokenUser {
  alignas(TOKEN_USER) std::byte memory[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
  PSID sid = nullptr;  // null if the query failed
};

void ask_user(TokenUser& user) {
  HANDLE token = nullptr;
  if (OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token) == 0) return;
  const OwnedHandle owned(token);
  DWORD bytes = 0;
  if (GetTokenInformation(token, ::TokenUser, user.memory, sizeof(user.memory), &bytes) != 0)
    user.sid = reinterpret_cast<TOKEN_USER*>(user.memory)->User.Sid;
}

}  // namespace

OwnerOnly owner_only() {
  TokenUser user;
  ask_user(user);
  wchar_t* name = nullptr;
  if (user.sid == nullptr || ConvertSidToStringSidW(user.sid, &name) == 0) return {};
  // Full access for this user, the system and the administrators, nothing inherited.
  const std::wstring text = std::wstring(L"D:P(A;OICI;FA;;;") + name + L")(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)";
  LocalFree(name);
  PSECURITY_DESCRIPTOR description = nullptr;
  ConvertStringSecurityDescriptorToSecurityDescriptorW(text.c_str(), SDDL_REVISION_1, &description, nullptr);
  return OwnerOnly(description);
}

std::uint32_t user_number() {
  TokenUser user;
  ask_user(user);
  if (user.sid == nullptr) return 0;
  const UCHAR parts = *GetSidSubAuthorityCount(user.sid);
  return parts == 0 ? 0 : *GetSidSubAuthority(user.sid, parts - 1u);
}

}  // namespace millrace::os
