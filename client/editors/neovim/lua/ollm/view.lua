--- The two windows of a chat: the conversation, which nobody can edit, and below it the prompt, an ordinary buffer.
---
--- Two windows and not one with a region at its end: so undo, yanks and folds are those of ordinary buffers, and an
--- answer that arrives never touches what is being written. Knows lines and windows, and nothing of the daemon.
---
--- **Invariants**: a window whose cursor is not on the last line never moves; lines that did not change are not written.

local text = require("ollm.text")

local M = {}

local api = vim.api

local marks_space = api.nvim_create_namespace("ollm")
--- Bytes of a conversation beyond which it is not highlighted as Markdown, because parsing it would take too long.
local MAX_HIGHLIGHT_BYTES = 512 * 1024
--- Columns of the screen from which a chat opens beside the other window.
local MIN_VERTICAL_COLUMNS = 120

--- Views by their conversation buffer.
local views = {}
local n_views = 0

---@class ollm.View
---@field buffer integer the conversation
---@field prompt integer the buffer in which a message is written
---@field page table what the conversation shows
---@field actions table<string, function> what keys do
---@field bar string the value of `winbar`
---@field tail integer bytes of the last line
local View = {}
View.__index = View

--- Highlights a buffer as Markdown: with treesitter if its parser is there, else with syntax files.
local function highlight(buffer)
  vim.treesitter.language.register("markdown", { "ollm", "ollm-prompt" })
  local is_parsed = pcall(vim.treesitter.start, buffer, "markdown")
  if not is_parsed then
    vim.bo[buffer].syntax = "markdown"
  end
end

local function new_buffer(name, filetype)
  local buffer = api.nvim_create_buf(false, true)
  api.nvim_buf_set_name(buffer, name)
  vim.bo[buffer].bufhidden = "hide"
  vim.bo[buffer].swapfile = false
  vim.bo[buffer].filetype = filetype
  highlight(buffer)
  return buffer
end

--- Creates the buffers of a chat; shows nothing yet.
---@param actions {send: fun(message: string), stop: fun(): boolean, closed: fun(), earlier: fun()}
---@return ollm.View
function M.new(actions)
  n_views = n_views + 1
  local view = setmetatable({
    buffer = new_buffer(("ollm://chat/%d"):format(n_views), "ollm"),
    prompt = new_buffer(("ollm://prompt/%d"):format(n_views), "ollm-prompt"),
    page = { lines = {}, marks = {}, folds = {}, anchors = {} },
    actions = actions,
    bar = "",
    tail = 0,
  }, View)
  vim.bo[view.buffer].undolevels = -1
  vim.bo[view.buffer].modifiable = false
  views[view.buffer] = view
  view:map_keys()
  local group = api.nvim_create_augroup("ollm_view_" .. view.buffer, { clear = true })
  api.nvim_create_autocmd("BufWinEnter", {
    group = group,
    buffer = view.buffer,
    callback = function()
      view:dress(api.nvim_get_current_win())
    end,
  })
  for _, buffer in ipairs({ view.buffer, view.prompt }) do
    -- `:bdelete` takes the lines and the keys of a buffer and leaves the rest, so the chat ends with it.
    api.nvim_create_autocmd("BufUnload", {
      group = group,
      buffer = buffer,
      callback = vim.schedule_wrap(function()
        for _, unloaded in ipairs({ view.prompt, view.buffer }) do
          pcall(api.nvim_buf_delete, unloaded, { force = true })
        end
      end),
    })
  end
  api.nvim_create_autocmd("BufWipeout", {
    group = group,
    buffer = view.buffer,
    callback = function()
      views[view.buffer] = nil
      api.nvim_del_augroup_by_id(group)
      view.actions.closed()
    end,
  })
  return view
end

--------------------------------------------------------------------------------------------------------------------
-- Keys

function View:map_keys()
  local function map(buffer, modes, key, description, action)
    vim.keymap.set(modes, key, action, { buffer = buffer, desc = "ollm: " .. description, nowait = true })
  end
  for _, buffer in ipairs({ self.buffer, self.prompt }) do
    map(buffer, "n", "<C-c>", "stop the answer", function()
      self.actions.stop()
    end)
    map(buffer, "n", "g?", "list the keys", function()
      vim.cmd.help("ollm-keys")
    end)
  end
  map(self.prompt, "i", "<C-c>", "stop the answer, or leave insert mode", function()
    if not self.actions.stop() then
      vim.cmd.stopinsert()
    end
  end)
  map(self.prompt, "n", "<CR>", "send the message", function()
    self:submit()
  end)
  map(self.prompt, { "n", "i" }, "<C-s>", "send the message", function()
    self:submit()
  end)
  for _, key in ipairs({ "i", "a", "o", "<CR>" }) do
    map(self.buffer, "n", key, "write a message", function()
      self:focus_prompt(true)
    end)
  end
  map(self.buffer, "n", "q", "close the chat", function()
    self:close()
  end)
  map(self.buffer, "n", "gE", "load earlier messages", function()
    self.actions.earlier()
  end)
  map(self.buffer, { "n", "x" }, "]]", "next message", function()
    self:jump(1)
  end)
  map(self.buffer, { "n", "x" }, "[[", "previous message", function()
    self:jump(-1)
  end)
end

--- Sends what the prompt has, and empties it.
---@param first? string a text to send before it
function View:submit(first)
  local message = table.concat(api.nvim_buf_get_lines(self.prompt, 0, -1, false), "\n")
  message = first and first ~= "" and first .. "\n\n" .. message or message
  if not message:find("%S") then
    return
  end
  if self.actions.send(vim.trim(message)) then
    -- Setting the option ends the step of undo, so that `u` brings the message back.
    vim.bo[self.prompt].undolevels = vim.go.undolevels
    api.nvim_buf_set_lines(self.prompt, 0, -1, false, {})
  end
end

--- Puts a message that was not sent back into the prompt, before what was written since.
---@param message string
function View:give_back(message)
  if not api.nvim_buf_is_valid(self.prompt) then
    return
  end
  local lines = vim.split(message, "\n", { plain = true })
  local written = api.nvim_buf_get_lines(self.prompt, 0, -1, false)
  if table.concat(written):find("%S") then
    vim.list_extend(lines, written)
  end
  api.nvim_buf_set_lines(self.prompt, 0, -1, false, lines)
end

--- Moves to the next or the previous message.
function View:jump(direction)
  local line = api.nvim_win_get_cursor(0)[1] - 1
  local target
  for _, anchor in ipairs(self.page.anchors) do
    if direction > 0 and anchor.line > line then
      target = anchor.line
      break
    elseif direction < 0 and anchor.line < line then
      target = anchor.line
    end
  end
  if target then
    api.nvim_win_set_cursor(0, { target + 1, 0 })
  end
end

--- Moves the cursor to a record. Returns whether the conversation shows it.
---@param seq integer
---@return boolean
function View:go_to(seq)
  for _, anchor in ipairs(self.page.anchors) do
    if anchor.seq == seq then
      for _, window in ipairs(vim.fn.win_findbuf(self.buffer)) do
        api.nvim_win_set_cursor(window, { anchor.line + 1, 0 })
        api.nvim_win_call(window, function()
          vim.cmd("normal! zt")
        end)
      end
      return true
    end
  end
  return false
end

--------------------------------------------------------------------------------------------------------------------
-- Windows

--- Sets the options of a window that shows the conversation, without changing those of other buffers in it.
function View:dress(window)
  local options = {
    winbar = self.bar, foldmethod = "manual", foldenable = true, foldminlines = 0, wrap = true, linebreak = true,
    number = false, relativenumber = false, signcolumn = "no", list = false, spell = false, conceallevel = 0,
    fillchars = "eob: ",
    foldtext = "v:lua.require'ollm.view'.foldtext()",
  }
  for name, value in pairs(options) do
    vim.wo[window][0][name] = value
  end
  self:fold(window)
end

--- Returns the window of the current tab page that shows a buffer, or nil.
local function window_of(buffer)
  for _, window in ipairs(api.nvim_tabpage_list_wins(0)) do
    if api.nvim_win_get_buf(window) == buffer then
      return window
    end
  end
end

--- Returns the place that `auto` means now.
local function chosen_layout(layout)
  if layout ~= "auto" then
    return layout
  end
  local buffer = api.nvim_get_current_buf()
  local is_blank = api.nvim_buf_get_name(buffer) == "" and not vim.bo[buffer].modified
    and vim.bo[buffer].buftype == "" and api.nvim_buf_line_count(buffer) == 1
  if is_blank and #api.nvim_tabpage_list_wins(0) == 1 then
    return "current"
  end
  return vim.o.columns >= MIN_VERTICAL_COLUMNS and "vertical" or "tab"
end

local OPENERS = {
  vertical = "botright vsplit", horizontal = "botright split", tab = "tab split", current = nil,
}

--- Closes a window when another one closes, unless it is the last one or shows something else by then.
local function close_with(window, other)
  local shown = api.nvim_win_get_buf(other)
  api.nvim_create_autocmd("WinClosed", {
    pattern = tostring(window),
    once = true,
    callback = function()
      vim.schedule(function()
        if api.nvim_win_is_valid(other) and api.nvim_win_get_buf(other) == shown then
          pcall(api.nvim_win_close, other, true)
        end
      end)
    end,
  })
end

--- Opens the prompt below a window of the conversation.
function View:open_prompt(window, height)
  api.nvim_set_current_win(window)
  vim.cmd(("belowright %dsplit"):format(height))
  local prompt = api.nvim_get_current_win()
  api.nvim_win_set_buf(prompt, self.prompt)
  local options = {
    winfixheight = true, wrap = true, linebreak = true, number = false, relativenumber = false, signcolumn = "no",
    foldenable = false, list = false, fillchars = "eob: ",
    winbar = "%#OllmDim# Enter sends, in insert mode Ctrl-S  ·  Ctrl-C stops  ·  g? keys",
  }
  for name, value in pairs(options) do
    vim.wo[prompt][0][name] = value
  end
  close_with(window, prompt)
  close_with(prompt, window)
end

--- Shows the chat in the current tab page, and moves to its prompt.
---@param options {layout: string, prompt_height: integer}
function View:open(options)
  local window = window_of(self.buffer)
  if not window then
    local opener = OPENERS[chosen_layout(options.layout)]
    if opener then
      vim.cmd(opener)
    end
    window = api.nvim_get_current_win()
    api.nvim_win_set_buf(window, self.buffer)
    self:dress(window)
    api.nvim_win_set_cursor(window, { api.nvim_buf_line_count(self.buffer), 0 })
  end
  if not window_of(self.prompt) then
    self:open_prompt(window, options.prompt_height)
  end
  self:focus_prompt(false)
end

--- Moves to the prompt.
---@param inserts boolean whether to begin to write
function View:focus_prompt(inserts)
  local window = window_of(self.prompt)
  if window then
    api.nvim_set_current_win(window)
    if inserts then
      vim.cmd("startinsert!")
    end
  end
end

--- Closes the windows of the chat in this tab page; the chat itself goes on.
function View:close()
  local prompt = window_of(self.prompt)
  if prompt then
    pcall(api.nvim_win_close, prompt, true)
  end
  local window = window_of(self.buffer)
  if window and not pcall(api.nvim_win_close, window, true) then
    -- The last window shows an empty buffer then.
    vim.cmd.enew()
  end
end

--- Moves all windows of the conversation to its end.
function View:go_to_end()
  for _, window in ipairs(vim.fn.win_findbuf(self.buffer)) do
    api.nvim_win_set_cursor(window, { api.nvim_buf_line_count(self.buffer), 0 })
  end
end

--- Returns whether any window shows the conversation.
---@return boolean
function View:is_visible()
  return #vim.fn.win_findbuf(self.buffer) > 0
end

--- Shows a bar above the conversation; `make` gets the width of each window.
---@param make fun(width: integer): string
function View:set_bar(make)
  for _, window in ipairs(vim.fn.win_findbuf(self.buffer)) do
    local bar = make(api.nvim_win_get_width(window))
    if vim.wo[window].winbar ~= bar then
      -- A window of one line has no room for a bar, which is an error in some versions.
      pcall(function()
        vim.wo[window][0].winbar = bar
      end)
    end
    self.bar = bar
  end
end

--------------------------------------------------------------------------------------------------------------------
-- Lines

--- Returns the windows that follow the end of the conversation.
function View:followers()
  local last = api.nvim_buf_line_count(self.buffer)
  return vim.tbl_filter(function(window)
    local is_selecting = window == api.nvim_get_current_win() and api.nvim_get_mode().mode:find("^[vVsS\22\19]")
    return not is_selecting and api.nvim_win_get_cursor(window)[1] == last
  end, vim.fn.win_findbuf(self.buffer))
end

--- Changes the conversation and lets the windows follow that were at its end.
function View:change(write)
  local followers = self:followers()
  vim.bo[self.buffer].modifiable = true
  write()
  vim.bo[self.buffer].modifiable = false
  vim.bo[self.buffer].modified = false
  local last = api.nvim_buf_line_count(self.buffer)
  for _, window in ipairs(followers) do
    api.nvim_win_set_cursor(window, { last, math.max(0, self.tail - 1) })
  end
  if not self.is_plain and api.nvim_buf_get_offset(self.buffer, last) > MAX_HIGHLIGHT_BYTES then
    self.is_plain = true
    vim.treesitter.stop(self.buffer)
    vim.bo[self.buffer].syntax = ""
  end
end

--- Shows a page: writes the lines that differ, then places highlights and folds.
---@param page table
function View:show(page)
  if not api.nvim_buf_is_valid(self.buffer) then
    return
  end
  local old_marks = self.page.marks
  self.page = page
  local new = page.lines
  if #new == 0 then
    new = { "" }
  end
  local old = api.nvim_buf_get_lines(self.buffer, 0, -1, false)
  local shorter, same_first, same_last = math.min(#old, #new), 0, 0
  while same_first < shorter and old[same_first + 1] == new[same_first + 1] do
    same_first = same_first + 1
  end
  while same_last < shorter - same_first and old[#old - same_last] == new[#new - same_last] do
    same_last = same_last + 1
  end
  self.tail = #new[#new]
  if same_first < #new or #new ~= #old then
    self:change(function()
      local changed = vim.list_slice(new, same_first + 1, #new - same_last)
      api.nvim_buf_set_lines(self.buffer, same_first, #old - same_last, false, changed)
    end)
  end
  self:place_marks(old_marks, same_first)
  for _, window in ipairs(vim.fn.win_findbuf(self.buffer)) do
    self:fold(window)
  end
end

--- Places the highlights of the page; those above the first line that changed stay.
function View:place_marks(old, n_same_lines)
  local n_same = 0
  for index, mark in ipairs(self.page.marks) do
    local before = old[index]
    local is_same = before and mark.last < n_same_lines and before.line == mark.line and before.last == mark.last
      and before.group == mark.group
    if not is_same then
      break
    end
    mark.id = before.id
    n_same = index
  end
  for index = n_same + 1, #old do
    pcall(api.nvim_buf_del_extmark, self.buffer, marks_space, old[index].id)
  end
  for index = n_same + 1, #self.page.marks do
    local mark = self.page.marks[index]
    mark.id = nil
    self:place_mark(mark)
  end
end

--- Highlights the lines of a mark.
function View:place_mark(mark)
  mark.id = api.nvim_buf_set_extmark(self.buffer, marks_space, mark.line, 0, {
    id = mark.id, end_row = mark.last + 1, hl_group = mark.group, priority = 200, strict = false,
  })
end

--- Closes the folds that a window does not have yet; those that the user opened stay open.
function View:fold(window)
  api.nvim_win_call(window, function()
    for _, fold in ipairs(self.page.folds) do
      if vim.fn.foldlevel(fold.first + 1) == 0 then
        pcall(vim.cmd, ("silent %d,%dfold"):format(fold.first + 1, fold.last + 1))
      end
    end
  end)
end

--- Adds text at the end of the conversation, as a piece of the answer that arrives.
---@param piece string
---@param prefix string the beginning of each line, `> ` for thinking
function View:append(piece, prefix)
  if not api.nvim_buf_is_valid(self.buffer) then
    return
  end
  local lines = text.lines(piece)
  for index = 2, #lines do
    lines[index] = prefix .. lines[index]
  end
  local row, column = api.nvim_buf_line_count(self.buffer) - 1, self.tail
  self.tail = #lines == 1 and column + #lines[1] or #lines[#lines]
  self:change(function()
    api.nvim_buf_set_text(self.buffer, row, column, row, column, lines)
  end)
  local mark = self.page.marks[#self.page.marks]
  if prefix ~= "" and mark and mark.group == "OllmDim" then
    mark.last = row + #lines - 1
    self:place_mark(mark)
  end
end

--- Returns the line for a closed fold.
---@return string
function M.foldtext()
  local first = vim.v.foldstart - 1
  local label = "text"
  local view = views[api.nvim_get_current_buf()]
  for _, fold in ipairs(view and view.page.folds or {}) do
    label = fold.first == first and fold.label or label
  end
  return ("  + %s, %s"):format(label, text.counted(vim.v.foldend - first, "line"))
end

return M
