-- Measures for how long the editor does not handle anything else.

local M = {}

local uv = vim.uv
--- The time between two looks, in milliseconds.
local PERIOD_MS = 5

--- Returns the milliseconds of processor time that this process has used. Unlike the time of a clock, they do not grow
--- while other processes have the processor.
local function used_ms()
  local usage = uv.getrusage()
  return (usage.utime.sec + usage.stime.sec) * 1e3 + (usage.utime.usec + usage.stime.usec) / 1e3
end

--- Begins to measure. `stop` returns the most processor time between two looks, in milliseconds.
function M.start()
  local longest, last = 0, used_ms()
  local timer = uv.new_timer()
  local function look()
    local now = used_ms()
    longest = math.max(longest, now - last)
    last = now
  end
  timer:start(PERIOD_MS, PERIOD_MS, vim.schedule_wrap(look))
  return {
    stop = function()
      look()
      timer:stop()
      timer:close()
      return longest
    end,
  }
end

return M
