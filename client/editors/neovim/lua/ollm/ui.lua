--- Messages, questions and small windows, in the ways that other plugins can replace (`vim.notify`, `vim.ui`).

local text = require("ollm.text")

local M = {}

--- Reports something that happened.
---@param message string
function M.info(message)
  vim.notify("ollm: " .. text.safe(message), vim.log.levels.INFO)
end

--- Returns an error as lines: what happened, and the command that may help.
---@param err table
---@return string[]
function M.error_lines(err)
  local lines = { "error: " .. text.one_line(err.message or err.kind) }
  local hint = err.hint
  if err.kind == "invalidParams" and vim.startswith(err.message or "", "model: ") then
    -- The command of the daemon lists the models; this one also chooses.
    hint = ":Ollm model"
  end
  if hint then
    lines[2] = "  try: " .. text.one_line(hint)
  end
  return lines
end

--- Reports an error with its hint, on one line, because two would wait for a key.
---@param err table
function M.error(err)
  local lines = vim.tbl_map(vim.trim, M.error_lines(err))
  vim.notify("ollm: " .. table.concat(lines, "; "), vim.log.levels.ERROR)
end

--- Returns a callback of a call that reports the error, or passes the result on.
---@param on_result fun(result: any)
---@return fun(err: table?, result: any)
function M.reporting(on_result)
  return function(err, result)
    if err then
      return M.error(err)
    end
    on_result(result)
  end
end

--- Lets the user choose one of some items, which are shown as `line(item)`.
---@param items table[]
---@param prompt string
---@param line fun(item: table): string
---@param on_choice fun(item: table) not called if nothing is chosen
function M.pick(items, prompt, line, on_choice)
  local width = math.max(20, vim.o.columns - 8)
  local options = {
    prompt = prompt,
    kind = "ollm",
    format_item = function(item)
      return text.clip(line(item), width)
    end,
  }
  vim.ui.select(items, options, function(item)
    if item then
      on_choice(item)
    end
  end)
end

--- Asks a question with a few answers. The callback gets the answer, or nil.
---@param question string
---@param answers string[]
---@param on_answer fun(answer: string?)
function M.ask(question, answers, on_answer)
  vim.ui.select(answers, { prompt = text.one_line(question), kind = "ollm" }, on_answer)
end

--- Shows lines in a window in the middle of the screen, which `q` and Escape close.
---@param title string
---@param lines string[]
---@return integer window
function M.float(title, lines)
  local buffer = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, lines)
  vim.bo[buffer].modifiable = false
  vim.bo[buffer].bufhidden = "wipe"
  local width = vim.fn.strdisplaywidth(title) + 4
  for _, line in ipairs(lines) do
    width = math.max(width, vim.fn.strdisplaywidth(line))
  end
  width = math.min(width + 1, vim.o.columns - 4)
  local height = math.max(1, math.min(#lines, vim.o.lines - 6))
  local window = vim.api.nvim_open_win(buffer, true, {
    relative = "editor",
    width = width,
    height = height,
    row = math.max(0, math.floor((vim.o.lines - height) / 2) - 1),
    col = math.max(0, math.floor((vim.o.columns - width) / 2)),
    style = "minimal",
    border = "rounded",
    title = " " .. text.clip(title, math.max(1, width - 2)) .. " ",
  })
  vim.wo[window].wrap = true
  vim.wo[window].linebreak = true
  for _, key in ipairs({ "q", "<Esc>" }) do
    vim.keymap.set("n", key, "<Cmd>close<CR>", { buffer = buffer, nowait = true, desc = "Close" })
  end
  return window
end

--- Defines the highlight groups, as links that a color scheme or the user may replace.
function M.define_highlights()
  local links = {
    OllmUser = "Title",
    OllmAssistant = "Function",
    OllmTool = "Type",
    OllmDim = "Comment",
    OllmError = "DiagnosticError",
    OllmHint = "DiagnosticHint",
    OllmBar = "StatusLine",
    OllmBarFull = "DiagnosticWarn",
  }
  for name, target in pairs(links) do
    vim.api.nvim_set_hl(0, name, { link = target, default = true })
  end
end

return M
