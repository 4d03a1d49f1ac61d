-- Measures for how long the editor does not handle anything else.

local M = {}

local uv = vim.uv
--- The time between two looks, in milliseconds.
local PERIOD_MS = 5

--- Begins to measure. `stop` returns the longest time without a look, in milliseconds.
function M.start()
  local longest, last = 0, uv.hrtime()
  local timer = uv.new_timer()
  local function look()
    local now = uv.hrtime()
    longest = math.max(longest, (now - last) / 1e6 - PERIOD_MS)
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
