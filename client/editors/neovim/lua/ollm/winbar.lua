--- The bar above a chat: how full the window of the model is, the model, what the turn does, and the title.
---
--- Pure: makes a `winbar` value from what is known.

local text = require("ollm.text")

local M = {}

--- Cells of the drawing of the window.
local CELLS = 10
--- The percentage from which the drawing warns, as the daemon does.
local FULL_PERCENT = 85
--- The highest percentage of an estimate that is not done.
local MAX_ESTIMATE = 99

--- Returns what a phase of a turn does, in words.
---@param phase table the event of the phase, with `startedMs`, and `detail` for a compaction
---@param now_ms number
---@return string
function M.phase(phase, now_ms)
  if phase.name == "queued" then
    if phase.ahead and phase.ahead > 0 then
      return "waits for " .. text.counted(phase.ahead, "call")
    end
    return "waits for the model server"
  elseif phase.name == "compacting" then
    return "compacting" .. (phase.detail and ", " .. phase.detail or "")
  elseif phase.name == "loading" then
    return "loading the model"
  elseif phase.name == "reading" then
    local words = "reading"
    if phase.tokens then
      words = words .. " " .. text.counted(phase.tokens, "token")
    end
    if phase.expectedMs and phase.expectedMs > 0 and phase.startedMs then
      local percent = (now_ms - phase.startedMs) / phase.expectedMs * 100
      words = words .. (", %d %%"):format(math.max(0, math.min(MAX_ESTIMATE, percent)))
    end
    return words
  end
  return phase.name
end

local function escaped(value)
  return (value:gsub("%%", "%%%%"))
end

--- Returns the drawing and the numbers of the window, and the group that highlights the drawing.
local function meter(status)
  local percent = status.usedPercent or (status.contextTokens / math.max(1, status.promptLimit) * 100)
  local filled = math.max(0, math.min(CELLS, math.floor(percent / 100 * CELLS + 0.5)))
  if filled == 0 and status.contextTokens > 0 then
    filled = 1
  end
  local bar = ("█"):rep(filled) .. ("░"):rep(CELLS - filled)
  local numbers = ("%s/%s tokens (%d %%)"):format(
    text.grouped(status.contextTokens), text.grouped(status.promptLimit), percent)
  return bar, numbers, percent >= FULL_PERCENT and "OllmBarFull" or "OllmBar"
end

--- Returns the value of `winbar` for a window of `width` cells.
---@param info {title?: string, model?: string, status?: table, phase?: table, problem?: string}
---@param width integer
---@param now_ms number
---@return string
function M.line(info, width, now_ms)
  local parts, used = { "%#OllmBar# " }, 1
  -- The news matters most, and stands behind the rest, which therefore does not move.
  local news = info.problem or (info.phase and M.phase(info.phase, now_ms)) or ""
  news = text.clip(news, math.max(4, width - 4))
  local reserved = news ~= "" and vim.fn.strdisplaywidth(news) + 2 or 0
  local function add(words, group)
    if words ~= "" and used + reserved + vim.fn.strdisplaywidth(words) + 2 <= width then
      parts[#parts + 1] = ("%%#%s#%s%%#OllmBar#  "):format(group or "OllmBar", escaped(words))
      used = used + vim.fn.strdisplaywidth(words) + 2
    end
  end
  if info.status and info.status.promptLimit then
    local bar, numbers, group = meter(info.status)
    add(bar, group)
    add(numbers, group)
  end
  if info.model then
    add(text.clip(info.model, math.max(8, math.floor(width / 4))))
  end
  reserved = 0
  add(news, info.problem and "OllmError" or "OllmHint")
  local room = width - used - 1
  if info.title and info.title ~= "" and room > 5 then
    parts[#parts + 1] = "%=" .. escaped(text.clip(info.title, room - 1)) .. " "
  end
  return table.concat(parts)
end

return M
