--- Texts for people: safe to show, cut to a width, with numbers and times in words.
---
--- Text of models, sessions and tools is untrusted: everything that is shown goes through `safe` or `one_line`.
--- Knows neither buffers nor the daemon.

local M = {}

local lpeg = vim.lpeg
--- Matches a text without bytes with which an unsafe character can begin. Lua's patterns take 50 ns a byte for this, and
--- answers have megabytes.
local CLEAN = (1 - (lpeg.R("\0\8", "\11\31") + lpeg.S("\127\194\226"))) ^ 0 * -1

--- Removes escape sequences and control characters but line feed and tab, and characters that reorder text.
---@param text string
---@return string
function M.safe(text)
  if CLEAN:match(text) then
    return text
  end
  -- Control sequences, then strings for the terminal up to their end or that of the line, then other sequences.
  text = text:gsub("\27%[[ -?]*[@-~]?", ""):gsub("\194\155[ -?]*[@-~]?", "")
  text = text:gsub("\27[%]PX%^_][^\7\27\n]*\7?", ""):gsub("\27[ -/]*[0-~]?", "")
  text = text:gsub("\r\n?", "\n"):gsub("[%z\1-\8\11\12\14-\31\127]", "")
  text = text:gsub("\194[\128-\159]", "")
  -- Bidirectional controls, and separators that break lines invisibly.
  text = text:gsub("\226\128[\168-\174]", ""):gsub("\226\129[\166-\169]", "")
  return text
end

--- Returns a safe text with its words on one line.
---@param text string?
---@return string
function M.one_line(text)
  return vim.trim((M.safe(text or ""):gsub("%s+", " ")))
end

--- Returns a text on one line with at most `width` cells.
---@param text string?
---@param width integer
---@return string
function M.clip(text, width)
  text = M.one_line(text)
  -- No line of a screen needs more, and measuring a text of megabytes takes long.
  if #text > 4 * width then
    text = vim.fn.strcharpart(text, 0, width + 1)
  end
  if vim.fn.strdisplaywidth(text) <= width then
    return text
  end
  local low, high = 0, width
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if vim.fn.strdisplaywidth(vim.fn.strcharpart(text, 0, middle)) < width then
      low = middle
    else
      high = middle - 1
    end
  end
  return vim.fn.strcharpart(text, 0, low) .. "…"
end

--- Returns a text as lines for a buffer.
---@param text string
---@return string[]
function M.lines(text)
  text = M.safe(text)
  -- Answers have megabytes, for which `vim.split` takes several times as long.
  local lines, from = {}, 1
  while true do
    local to = text:find("\n", from, true)
    lines[#lines + 1] = text:sub(from, to and to - 1 or nil)
    if not to then
      return lines
    end
    from = to + 1
  end
end

--- Returns the length of the valid UTF-8 character at a byte of a text, or nil.
local function character_length(text, at)
  local first = text:byte(at)
  if first < 0x80 then
    return 1
  end
  local length = (first >= 0xC2 and first < 0xE0 and 2) or (first >= 0xE0 and first < 0xF0 and 3)
    or (first >= 0xF0 and first < 0xF5 and 4)
  if not length or #text < at + length - 1 then
    return nil
  end
  for offset = 1, length - 1 do
    local byte = text:byte(at + offset)
    if byte < 0x80 or byte > 0xBF then
      return nil
    end
  end
  local second = text:byte(at + 1)
  local is_overlong = (first == 0xE0 and second < 0xA0) or (first == 0xF0 and second < 0x90)
  local is_outside = (first == 0xED and second > 0x9F) or (first == 0xF4 and second > 0x8F)
  return not is_overlong and not is_outside and length or nil
end

--- Replaces bytes that are not UTF-8, because the daemon refuses a frame with them.
---@param text string
---@return string
function M.utf8(text)
  if not text:find("[\128-\255]") then
    return text
  end
  local parts, from, at = {}, 1, 1
  while true do
    at = text:find("[\128-\255]", at)
    if not at then
      break
    end
    local length = character_length(text, at)
    if not length then
      parts[#parts + 1] = text:sub(from, at - 1) .. "\239\191\189"
      from = at + 1
    end
    at = at + (length or 1)
  end
  return table.concat(parts) .. text:sub(from)
end

--- Returns a fence of backticks that is longer than any in a text.
---@param text string
---@return string
function M.fence(text)
  local longest = 2
  for run in text:gmatch("`+") do
    longest = math.max(longest, #run)
  end
  return ("`"):rep(longest + 1)
end

--- Returns the line that closes the code fence that is open at the end of Markdown lines, or nil.
---@param lines string[]
---@return string?
function M.open_fence(lines)
  local open
  for _, line in ipairs(lines) do
    local run, rest
    if line:find("^ ? ? ?[`~]") then
      run, rest = line:match("^ *(```+)(.*)$")
      if not run then
        run, rest = line:match("^ *(~~~+)(.*)$")
      end
    end
    if run and open then
      if run:sub(1, 1) == open:sub(1, 1) and #run >= #open and not rest:find("%S") then
        open = nil
      end
    elseif run and not (run:sub(1, 1) == "`" and rest:find("`", 1, true)) then
      open = run
    end
  end
  return open
end

--- Returns a number with its digits in groups of three.
---@param number number
---@return string
function M.grouped(number)
  local digits = ("%d"):format(math.floor(number))
  local grouped = digits:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return grouped
end

--- Returns a number with a noun, such as `1 file` and `2 files`.
---@param number number
---@param noun string
---@return string
function M.counted(number, noun)
  return M.grouped(number) .. " " .. noun .. (number == 1 and "" or "s")
end

--- Returns the seconds since 1970 of an RFC 3339 time of the daemon, which writes UTC, or nil.
---@param time string?
---@return number?
function M.seconds(time)
  local year, month, day, hour, minute, second = (time or ""):match("^(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)")
  if not year then
    return nil
  end
  -- Days since 1970, counted in years that begin in March.
  year, month = tonumber(year), tonumber(month)
  if month <= 2 then
    year, month = year - 1, month + 12
  end
  local days = 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
    + math.floor((153 * (month - 3) + 2) / 5) + tonumber(day) - 719469
  return days * 86400 + tonumber(hour) * 3600 + tonumber(minute) * 60 + tonumber(second)
end

--- Returns how long ago a time was, such as `5 min ago`.
---@param time string?
---@param now? number
---@return string
function M.ago(time, now)
  local at = M.seconds(time)
  if not at then
    return ""
  end
  local passed = math.max(0, (now or os.time()) - at)
  if passed < 60 then
    return "now"
  elseif passed < 3600 then
    return ("%d min ago"):format(passed / 60)
  elseif passed < 86400 then
    return ("%d h ago"):format(passed / 3600)
  end
  return M.counted(math.floor(passed / 86400), "day") .. " ago"
end

--- Returns the local time of day of a time, such as `10:05`.
---@param time string?
---@return string
function M.clock(time)
  local at = M.seconds(time)
  return at and tostring(os.date("%H:%M", at)) or ""
end

--- Returns the 32-bit FNV-1a hash of a text as 8 hexadecimal digits.
---@param text string
---@return string
function M.fnv1a(text)
  local hash = 0x811c9dc5
  for at = 1, #text do
    local low = hash % 256
    local mixed = hash - low + bit.bxor(low, text:byte(at))
    -- The prime is 2^24 + 403; the product of all 32 bits would not fit into a double.
    hash = ((mixed % 256) * 0x1000000 + mixed * 403) % 0x100000000
  end
  return ("%04x%04x"):format(math.floor(hash / 0x10000), hash % 0x10000)
end

return M
